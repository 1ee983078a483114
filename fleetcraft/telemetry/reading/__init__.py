"""Telemetry files read as streams: sources, lines, headers, times, cells and rows.

What the rows mean is for others. Invariant: every line is a row, a header, blank, or counted by the
reason why it is none.
"""
