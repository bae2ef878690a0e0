"""Policies at work: decisions audited, carried out in workers, told to people."""
