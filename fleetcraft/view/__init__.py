"""Pictures of records: text for people and JSON for programs.

`text` holds what all share (columns, colour, safe text); the others are one subject each: `status`,
`task`, `run`, `check`. Records in, text or plain dictionaries out. Nothing here walks a directory.
"""
