"""What progress means: expected steps, alarms, a census of ranks, queues, throughput, ETA.

`watch` makes one `sight` of reports and of a `census`; `expectation`, `pace`, `phases`, `queues`,
`trend` and `witness` are its parts. Invariant: only `census` looks at the machine, and nothing here
decides what is done about a run.
"""
