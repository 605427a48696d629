"""Faults, one module for each family, with injection, heal and evidence."""
