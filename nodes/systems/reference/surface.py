"""What designs that leave messages to the reference engine guarantee of what consumers look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stormproof.contracts.guarantee import PROMISED, Guarantee

_LIKE: Mapping[str, tuple[str, str]] = {
    "content": ("phantom", "headers and body are stored, and replicated, as they came"),
    "subscription": ("phantom", "a window is the subscription's own, and ends with it"),
    "refusal": ("phantom", "a command is checked when it is carried out, and refused as a whole"),
    "redelivery": ("duplicated", "that a message was delivered is a change like any other"),
}
"""Guarantee -> the one that is broken where it may be, and why it is promised."""


def of_surface(declared: Iterable[Guarantee]) -> tuple[Guarantee, ...]:
    """What a system says of these guarantees, from what it says of those that stand and fall with the same."""
    found = []
    for name, (like, why) in _LIKE.items():
        for guarantee in declared:
            if guarantee.name == like:
                always = guarantee.status == PROMISED and not guarantee.faults and not guarantee.mode
                found.append(replace(guarantee, name=name, where="ours" if always else guarantee.where,
                                     why=why if always else guarantee.why))  # fmt: skip
    return tuple(found)
