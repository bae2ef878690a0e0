"""One file for each question. Each is pure: what it needs has been seen before."""
