"""Compiled inner loops. Each module compiles on first import, and Numba's cache stores it on disk."""
