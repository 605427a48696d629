"""HA IceStorm as a system under test."""
