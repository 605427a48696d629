"""The design ``qpid`` as a system under test."""
