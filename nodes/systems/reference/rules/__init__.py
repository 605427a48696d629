"""Rules that the four designs share."""
