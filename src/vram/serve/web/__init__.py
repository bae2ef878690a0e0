"""HTTP, which only reads: the server, its paths, metrics."""
