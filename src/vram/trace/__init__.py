"""Traces: recording, reading and exporting what a program allocated on GPUs."""
