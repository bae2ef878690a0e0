"""Observations in, a balanced ledger out. Pure: nothing here looks at the machine."""
