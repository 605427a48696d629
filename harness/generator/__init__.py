"""Pure generators of operations."""
