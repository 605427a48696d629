"""The exception that the parts of dialogues raise."""

from __future__ import annotations


class Mismatch(Exception):
    """The broker behaved differently from the model; the text names the difference in few words, so that it can be
    counted."""
