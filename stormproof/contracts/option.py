"""Settings that ``--set name=value`` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A setting that ``--set name=value`` accepts, declared by a system, workload, fault or backend.

    ``choices`` are the possible values if they are limited; ``extensible``: a system may add to them. A number is at
    least ``least``, unless its default is lower: then it has no lower bound. ``load``: the setting counts clients, or
    resources that they use, and a smaller test has fewer. ``was`` is the option's name in the previous release;
    ``--set`` accepts that name, too, for one release.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0
    load: bool = False
    extensible: bool = False
    was: str = ""
