"""The reference broker without replication, as a system under test."""
