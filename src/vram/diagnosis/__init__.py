"""What the ledger means: one rule per cause, judged without looking at the machine again."""
