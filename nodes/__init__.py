"""What runs on a node, and how each system under test is installed, started and stopped."""
