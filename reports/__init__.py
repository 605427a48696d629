"""Reports: one HTML page per run, an index over a store, and a small web server for both.

A report shows what the run folder holds and never recomputes a verdict.
"""
