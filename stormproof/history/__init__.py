"""Histories and fault ledgers: their schema, their crash-safe journal, their Parquet form."""
