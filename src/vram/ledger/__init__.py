"""Observations in, a balanced ledger out. Pure: nothing here reads the machine."""
