"""What the parts of dialogues raise."""

from __future__ import annotations


class Mismatch(Exception):
    """The broker did something else than the model; the text says what, in few words, so that it can be counted."""
