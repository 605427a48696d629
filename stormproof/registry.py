"""Names that a user can type, each with a one-line summary and the object behind it.

The entries name their objects as ``module:attribute`` and import them on use, so listing them costs nothing.
``stormproof list``, the command line's help and the documentation are generated from them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeGuard, TypeVar

from stormproof.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A registered name; ``target`` is ``module:attribute``."""

    name: str
    summary: str
    target: str


class Registry(Generic[T]):
    """Entries of one kind (``kind`` is the singular noun used in messages), whose objects ``fits`` accepts."""

    def __init__(self, kind: str, fits: Callable[[object], TypeGuard[T]], *entries: Entry) -> None:
        self.kind = kind
        self._fits = fits
        self._entries = {entry.name: entry for entry in entries}
        self._objects: dict[str, T] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Return all names, in the order of registration."""
        return list(self._entries)

    def add(self, entry: Entry, found: T) -> None:
        """Register an additional entry whose object is already loaded: an entry of a plug-in.

        Raises:
            UsageError: another entry has the name.
        """
        known = self._entries.get(entry.name)
        if known is not None and known != entry:
            raise UsageError(f"{entry.target}: there is a {self.kind} {entry.name!r} already; give it another `name`")
        self._entries[entry.name] = entry
        self._objects[entry.name] = found

    def remove(self, name: str) -> None:
        """Remove a name, if it is registered."""
        self._entries.pop(name, None)
        self._objects.pop(name, None)

    def entry(self, name: str) -> Entry:
        """Return the entry of that name.

        Raises:
            UsageError: there is none; the message names the nearest and all others.
        """
        if name in self._entries:
            return self._entries[name]
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no {self.kind} {name!r}{hint} (known: {', '.join(self._entries)})")

    def load(self, name: str) -> T:
        """Return the object behind the name; raise UsageError as ``entry`` does."""
        entry = self.entry(name)
        if name not in self._objects:
            module, _, attribute = entry.target.partition(":")
            self._objects[name] = self.accept(getattr(importlib.import_module(module), attribute), entry.target)
        return self._objects[name]

    def accept(self, found: object, target: str) -> T:
        """Return the object, which ``target`` names, if it is of this registry's kind.

        Raises:
            UsageError: it is of another kind.
        """
        if self._fits(found):
            return found
        raise UsageError(f"{target} is no {self.kind}: {_described(found)}")


def _described(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
