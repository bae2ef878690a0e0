"""The claims, one module per topic: a function each, whose docstring is its page."""
