"""The description of one bug that can be switched on, and of the edits of the code that make it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

_SHARING = ("joram", "qpid", "fiorano")
"""The designs that use the engine and the server."""
ALL_DOWN: Mapping[str, str] = {"max_down": "3", "kill_kind": "random"}
"""An exercise: all nodes are killed."""
SURFACE: Mapping[str, str] = {"surface": "true"}
"""An exercise: clients use what the broker has beyond the workload's usual operations."""


@dataclass(frozen=True)
class Edit:
    """Replaces ``old`` by ``new`` in ``function`` of ``module`` (below ``nodes.reference``), which has ``old`` once.

    If the module has several functions of that name, it is the one that contains ``old``.
    """

    module: str
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """One bug: its effect, its edits, and the test that exercises it.

    ``exercise`` holds the settings that the bug needs to take effect. ``design`` is the one whose code has it; those in
    ``also`` share this code. ``workload`` and ``nemesis`` are those that reveal it. ``nodes`` is the number of nodes
    needed, None for that of any test. ``client``: the bug is in the workload's client instead of the broker.
    ``drawn``: no test exercises the bug; only the default campaign hunts it.
    """

    name: str
    summary: str
    exercise: Mapping[str, str] = field(default_factory=dict)
    design: str = "joram"
    workload: str = "queue"
    nemesis: str = "partition,pause,kill"
    nodes: int | None = None
    also: tuple[str, ...] = ()
    client: bool = False
    drawn: bool = False
    edits: tuple[Edit, ...] = ()

    @property
    def test(self) -> str:
        """The options of ``stormproof simulate`` that reveal the bug; unless it is drawn, also of ``test``."""
        if self.drawn:
            return shlex.join(["--system", self.design, "--draw", "--seeds", "300"])
        words = ["--system", self.design, "--workload", self.workload, "--nemesis", self.nemesis]
        words += [] if self.nodes is None else ["--nodes", str(self.nodes)]
        for name, value in self.exercise.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)

    @property
    def designs(self) -> tuple[str, ...]:
        """All designs that have it."""
        return (self.design, *self.also)


def pieces(*edits: tuple[str, str, str]) -> tuple[Edit, ...]:
    """Build edits; each is ``module:function``, the piece of source to replace, and its replacement."""
    found = []
    for place, old, new in edits:
        module, _, function = place.partition(":")
        found.append(Edit(module, function, old, new))
    return tuple(found)


def edit(name: str, design: str, summary: str, place: str, old: str, new: str) -> Bug:
    """Describe a bug that is one edit, and that the default campaign hunts."""
    return edits(name, design, summary, (place, old, new))


def edits(name: str, design: str, summary: str, *several: tuple[str, str, str]) -> Bug:
    """Describe a bug that consists of several edits, and that the default campaign hunts."""
    return Bug(name, summary, design=design, also=_SHARING if design == "standalone" else (), drawn=True,
               edits=pieces(*several))
