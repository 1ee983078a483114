"""Result records: appended by tasks, judged by arm, compared.

Invariant: what makes two results comparable stands in each record, never in a name.
"""
