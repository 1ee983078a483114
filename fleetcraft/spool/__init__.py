"""The spool: a directory tree whose folders are the states of its tasks.

Start with `store.Spool`. The protocol is in `enqueue`, `claims`, `recovery`, `control` and
`dependencies`; the record's text in `record` and `directives`; what can be said of it all in
`views` and `check`. Nothing here starts a task or calls a scheduler.
"""
