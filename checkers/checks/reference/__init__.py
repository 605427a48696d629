"""Checks of what the reference broker alone logs."""
