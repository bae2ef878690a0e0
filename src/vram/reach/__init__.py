"""Ways into a live Python process, safest first."""
