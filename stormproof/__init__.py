"""Stormproof: chaos testing for highly available message brokers."""
