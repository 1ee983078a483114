"""The batch transaction: from 64 waiting records to one committed policy version, or back.

`batch` is the transaction, `selection` what it is opened over, `judging` what is training data,
`committing` the one link that makes a version, `settling` how any transaction ends. Not here: the
loop around it (`trainer`) and the pass over dead ones (`recovery`). Invariant: a version's commit
is published once, and nothing under it is ever trained on again.
"""
