"""Any broker that speaks a standard protocol, from a Compose file or already running."""
