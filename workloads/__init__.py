"""Workloads: generator, client, and the promises to check."""
