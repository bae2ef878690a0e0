"""Machines whose GPU shares the system's memory, by whole commands."""
