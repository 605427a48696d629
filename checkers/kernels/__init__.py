"""Compiled kernels over the columns of a history."""
