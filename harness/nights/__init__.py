"""Nights: a matrix of tests from one file, run unattended."""
