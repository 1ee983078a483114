"""The batch transaction: from 64 waiting records to one committed policy version, or back."""
