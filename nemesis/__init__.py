"""Faults, one module a family, each with inject, heal and evidence."""
