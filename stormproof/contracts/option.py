"""Settings that ``--set name=value`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A setting that ``--set name=value`` takes, declared by a system, workload, fault or backend.

    ``choices`` are its values where there are only so many; ``extensible``: a system may add to them. A number is at
    least ``least``. ``load``: it counts clients, or what they use, and a smaller test has fewer. ``was`` is the
    option's name in the release before; ``--set`` takes that name, too, for one release.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0
    load: bool = False
    extensible: bool = False
    was: str = ""
