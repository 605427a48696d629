"""Workloads and clients of the reference broker alone, and its STOMP clients of the others."""
