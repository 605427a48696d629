"""Nodes on hosts that are reached over SSH."""
