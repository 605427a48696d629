"""The reference HA broker; imports the standard library and nothing of the harness."""
