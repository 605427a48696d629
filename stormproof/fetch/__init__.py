"""Brokers that are not in Debian or on PyPI: brought into the user's cache by the ordinary clients of registries."""
