"""What the parts of a test are to each other: small classes whose hooks do nothing unless they are overridden."""
