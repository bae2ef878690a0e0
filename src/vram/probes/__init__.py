"""The host, read into observations: one engine that never raises, one file per source."""
