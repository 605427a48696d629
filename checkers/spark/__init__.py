"""Spark: its start, its workers, and the jobs that check runs."""
