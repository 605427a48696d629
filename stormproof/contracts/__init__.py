"""The contracts between the parts of a test: small classes whose hooks do nothing unless overridden."""
