"""The sources of plug-ins and their helper modules, frozen at the start of a run.

A run takes long enough for a person to edit an adapter in the meantime. So every process of a run imports the sources
that were read at its start. The file names of the modules stay the same.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stormproof.own_packages import PACKAGES

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_OURS = (*PACKAGES, "stormproof")


@dataclass(frozen=True)
class Source:
    """The source of a module. ``package`` tells that the source is a package's ``__init__``."""

    path: str
    content: bytes
    package: bool

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the source."""
        return hashlib.sha256(self.content).hexdigest()

    def pack(self) -> list[object]:
        """Return the source in a form that JSON can hold."""
        return [self.path, base64.b85encode(zlib.compress(self.content)).decode(), self.package]

    @classmethod
    def unpack(cls, packed: Sequence[object]) -> Source:
        """Return the source from the form that ``pack`` returned."""
        path, content, package = packed
        return cls(str(path), zlib.decompress(base64.b85decode(str(content))), bool(package))


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from its frozen source. It neither reads nor writes byte code."""

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(name, source.path)
        self._content = source.content

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compile the source each time."""
        return self.source_to_code(self._content, self.path)

    def get_data(self, path: str) -> bytes:
        """Return the frozen source. Other files, such as a package's data, are read from disk."""
        return self._content if path == self.path else super().get_data(path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
        source = self.sources.get(fullname)
        if source is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, source.path, loader=_Loader(fullname, source),
            submodule_search_locations=[str(Path(source.path).parent)] if source.package else None)  # fmt: skip


_finder = _Finder()


def keep(name: str, source: Source) -> Source:
    """Have a module imported from this source from now on, unless another was kept before. Return the source in
    effect."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return _finder.sources.setdefault(name, source)


def drop(name: str) -> None:
    """Have a module imported from its file again, because the import from the source failed."""
    _finder.sources.pop(name, None)


def forget() -> None:
    """Import all modules from files again."""
    _finder.sources.clear()


def helpers_of(source: Source) -> dict[str, Source]:
    """Return the modules next to a plug-in's file that the plug-in imports, directly or indirectly, at any time."""
    folder, found, open_ones = Path(source.path).parent, dict[str, Source](), [source.content]
    seen: set[str] = set()
    while open_ones:
        for top in set(_imported(open_ones.pop())) - seen:
            seen.add(top)
            for name, path in _beside(top, folder):
                found[name] = Source(str(path), path.read_bytes(), path.name == "__init__.py")
                open_ones.append(found[name].content)
    return found


def imported_since(before: Mapping[str, ModuleType], package: str = "") -> dict[str, Source]:
    """Return the modules imported since ``before`` that belong to no library, or that belong to ``package``."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in before or not isinstance(file, str) or not file.endswith(".py") or name.partition(".")[0] in _OURS:
            continue
        path = Path(file).resolve()
        if path.is_file() and (not str(path).startswith(_LIBRARIES) or name.partition(".")[0] == package):
            found[name] = Source(str(path), path.read_bytes(), path.name == "__init__.py")
    return found


def _imported(content: bytes) -> Iterator[str]:
    """Yield the first parts of the names that a source imports; none if the source can't be compiled."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _beside(top: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield a module of this name and its file, or all modules of a package, if an import would find it in the
    folder."""
    if top in _OURS or top in sys.builtin_module_names:
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return
    origin = Path(spec.origin).resolve()
    if origin == folder / f"{top}.py":
        yield top, origin
    elif origin == folder / top / "__init__.py":
        for path in sorted(origin.parent.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path
