"""The command line: one file per command, and the one place that prints errors."""
