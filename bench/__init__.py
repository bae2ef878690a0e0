"""Speed against others, measured as ratios. `make bench` runs it."""
