"""Benchmarks of the reference broker; ``python -m harness.tools.bench`` runs them."""
