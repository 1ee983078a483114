"""Rollouts: the trajectory queue between producers that sample and a trainer that updates.

Not the task spool: that recovers work, this defines what a policy is trained on. Invariant: an
identity is committed at most once, and what left `pending` is committed, back, or in quarantine
with a reason.
"""
