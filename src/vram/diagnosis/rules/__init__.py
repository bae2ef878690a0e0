"""One file per cause. A rule reads a ledger and says what it means; its docstring is its manual page."""
