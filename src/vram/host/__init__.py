"""The only door to the world: ports that say what can be asked, and the machine at hand."""
