"""The rules of joram; ``table`` lists them all."""
