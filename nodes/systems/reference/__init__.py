"""The common parts of all designs of the reference broker as systems under test."""
