"""Guarantee checks: kernels over columns, run by PySpark."""
