"""What ranks report of their progress: one line a step, from any language.

`writing` is what training scripts call, `adapters` does it for frameworks, `lines` decodes, and
`reading` follows the files. Invariant: what is reported never makes a script fail, and what cannot
be read never counts as silence.
"""
