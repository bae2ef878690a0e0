"""Run a payload inside a live Python process: the injectors, safest first."""
