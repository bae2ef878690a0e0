"""Formats: they know nothing of the machine, and trust no text that came from it."""
