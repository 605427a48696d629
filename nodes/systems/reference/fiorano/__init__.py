"""The design ``fiorano`` as a system under test."""
