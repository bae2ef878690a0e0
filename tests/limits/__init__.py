"""Limits of GPU memory by control group."""
