"""The HTML page of a report: templates, charts and their words.

`render_report` in `page` is the way in. Invariant: the page is one file that loads nothing, and
whatever comes from a file of the scratch tree is inert in it.
"""
