"""The harness parts that serve the reference broker alone: its bugs, its descriptors, its simulated runtime."""
