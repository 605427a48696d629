"""Reports: one HTML page per run, an index over a store, and a small web server for both.

A report shows the content of the run folder and never recomputes a verdict.
"""
