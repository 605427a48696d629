"""The rules of icestorm; ``table`` lists them all."""
