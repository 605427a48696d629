"""The built-in cluster resource manager: a program beside each broker, which keeps exactly one of these the primary."""
