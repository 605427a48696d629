"""The lake: one table of all runs of a store, its files and its views."""
