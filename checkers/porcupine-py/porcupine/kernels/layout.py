"""Columns of the rows that the search walks (``prepare.Prepared`` explains them)."""

F, A, B, FLAGS, SLOT, FIRST, TWIN, ORIGIN, BY_CALL, START, WILD, WIDTH = range(12)
"""BY_CALL, START and WILD describe a level, not the operation of that rank."""
