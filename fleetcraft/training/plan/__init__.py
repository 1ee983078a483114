"""What a run declares: its file, ladder and budgets, and what its launcher should have built."""
