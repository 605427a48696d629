"""Systems under test: install, configure, start, ask."""
