"""The supervisor: one state machine that launches, watches, diagnoses, stops and tries again."""
