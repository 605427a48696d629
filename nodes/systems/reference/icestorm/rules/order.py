"""A watcher of the order of what HA IceStorm's replicas ask and answer each other, read from the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodes.reference.designs.icestorm.decisions import round_of
from stormproof.contracts.invariant import Watcher

_PROMISE, _INSTALL, _READY, _UPDATE = "promise", "install", "ready", "update"
_FOLLOWED = frozenset((_PROMISE, _INSTALL, _READY, _UPDATE))
"""The questions that matter here."""


class AgreesInOrder(Watcher):
    """Tracks the questions without an answer, to whom each replica has promised which epochs, and the last change that
    each has acknowledged in each group."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str, int], tuple[str, list[Any]]] = {}
        self._promised: dict[tuple[str, int], tuple[str, str]] = {}
        self._has: dict[tuple[str, str], int] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check what a coordinator asks, and what a replica agrees to, against all that was answered before."""
        match frame:
            case ["ask", int(number), str(question), list(about)] if question in _FOLLOWED:
                self._asked[node, peer, number] = question, about
                return self._asks(node, peer, question, about)
            case ["answer", int(number), answer]:
                question, about = self._asked.pop((peer, node, number), ("", []))
                return self._agrees(node, peer, question, about) if question and answer not in (None, False) else ""
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica's questions, whose numbers begin again."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] != node}

    def _asks(self, node: str, peer: str, question: str, about: Sequence[Any]) -> str:
        """Check that a coordinator goes on only with members that have acknowledged all that came before."""
        if question == _UPDATE:
            counter = int(about[2][1])
            return self._follows(peer, about[0], counter, f"it sends {peer} change {counter} of its group")
        if question == _READY and about[1]:
            lacking = [name for name in about[2] if name != node and (name, about[0]) not in self._has]
            return f"its group is ready, and {lacking[0]} has not installed its database" if lacking else ""
        return ""

    def _agrees(self, node: str, peer: str, question: str, about: Sequence[Any]) -> str:
        """Check that a replica installs a database of an epoch that it has promised to this group, and acknowledges
        each change after the one before it."""
        group, epoch = about[0], about[1]
        if question == _PROMISE:
            self._promised[node, epoch] = peer, group
        elif question == _INSTALL:
            if self._promised.get((node, epoch)) != (peer, group):
                return (
                    f"it installs a database of epoch {round_of(epoch)}, which it has not promised to "
                    f"this group of {peer}"
                )
            self._has[node, group] = 0
        elif question == _UPDATE:
            counter = int(about[2][1])
            if wrong := self._follows(node, group, counter, f"it acknowledges change {counter} of the group of {peer}"):
                return wrong
            self._has[node, group] = counter
        return ""

    def _follows(self, name: str, group: str, counter: int, does: str) -> str:
        has = self._has.get((name, group))
        if has == counter - 1:
            return ""
        return f"{does}, and {name} has " + (
            "not installed its database" if has is None else f"acknowledged {has} last"
        )
