"""HA Joram as a system under test."""
