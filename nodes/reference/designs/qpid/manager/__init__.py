"""The built-in cluster resource manager: one program next to each broker; together they keep exactly one broker
primary.
"""
