"""One file per source. A source only looks, and says what it saw as observations."""
