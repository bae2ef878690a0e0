"""One file per kind of out-of-memory. Its docstring is its manual page."""
