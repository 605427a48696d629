"""Benchmarks: ``python -m harness.tools.bench`` makes docs/benchmarks.md."""
