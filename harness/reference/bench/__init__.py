"""Benchmarks of the reference broker; ``python -m harness.bench`` runs them."""
