"""One claim each. The docstring is its page; ``measure`` puts it to the test."""
