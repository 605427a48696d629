"""Redis under test: one server, or three with Sentinel."""
