"""The command line: one module a verb or group, each of which parses, calls one function, prints.

`main` is the entry point and loads a verb's module only when it is used; `session` holds the
options that every verb takes; `output` writes to stdout and stderr. Nothing else imports click.
"""
