"""Compiled inner loops. Each module compiles on first import and is kept on disk by Numba's cache."""
