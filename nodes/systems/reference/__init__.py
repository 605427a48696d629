"""What all designs of the reference broker share as systems under test."""
