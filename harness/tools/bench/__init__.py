"""Benchmarks: ``python -m harness.tools.bench`` makes docs/reference/benchmarks.md."""
