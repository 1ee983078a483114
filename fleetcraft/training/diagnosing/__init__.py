"""How a run died: logs as streams of events, evidence in order of strength, one class."""
