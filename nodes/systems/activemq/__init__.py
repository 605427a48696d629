"""Apache ActiveMQ Classic under test: one broker with its journal on disk."""
