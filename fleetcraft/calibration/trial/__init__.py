"""One trial: whole cycles at one batch, in a process of its own, and who watches it.

`run` is the parent's side, `child` what the process does, `context` what a family's cycle gets; the
journal between them is all that one knows of the other. Invariant: the parent loads no torch.
"""
