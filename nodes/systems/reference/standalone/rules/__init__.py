"""Rules of the standalone broker: its draws."""
