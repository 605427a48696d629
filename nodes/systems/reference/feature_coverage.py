"""The guarantees on consumers' observations, for designs that leave messages to the reference engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stormproof.contracts.guarantee import PROMISED, Guarantee

_LIKE: Mapping[str, tuple[str, str]] = {
    "content": ("phantom", "headers and body are stored, and replicated, as they came"),
    "subscription": ("phantom", "a window is the subscription's own, and ends with it"),
    "refusal": ("phantom", "a command is checked when it is carried out, and refused as a whole"),
    "redelivery": ("duplicated", "that a message was delivered is a change like any other"),
}
"""Guarantee -> the guarantee that it depends on, and the reason why it is promised."""
_DIALOGUE = "dialogue"


def of_surface(declared: Sequence[Guarantee]) -> tuple[Guarantee, ...]:
    """Derive a system's statements on these guarantees from its statements on those that they depend on."""
    found = []
    for name, (like, why) in _LIKE.items():
        for guarantee in declared:
            if guarantee.name == like:
                always = guarantee.status == PROMISED and not guarantee.faults and not (
                    guarantee.mode or guarantee.such)
                found.append(replace(guarantee, name=name, where="ours" if always else guarantee.where,
                                     why=why if always else guarantee.why))  # fmt: skip
    # A model of the broker is violated by anything that violates one of these.
    broken = [replace(each, name=_DIALOGUE) for like in ("lost", "duplicated") for each in declared
              if each.name == like and each.status != PROMISED]
    found += [*broken, Guarantee(_DIALOGUE, PROMISED, "ours", "commands are carried out in one order, by the same "
                                 "rules on every node, and what is confirmed stays so")]  # fmt: skip
    return tuple(found)
