"""Plug-ins: systems, workloads, faults and checks from a user's file or from an installed package.

One is named on the command line as ``./mine.py:MyBroker``, or by an entry point of the group ``stormproof.systems``,
``.workloads``, ``.faults`` or ``.checks``. It reaches the processes of a run by the command lines that start them, and
is never loaded because a run's folder names it: run folders may come from strangers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from checkers.catalog import CHECKS
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import HistoryError, UsageError
from stormproof.registry import Entry, Registry
from workloads.catalog import WORKLOADS

SYSTEM, WORKLOAD, NEMESIS, CHECK = "system", "workload", "nemesis", "check"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""What may be part of a run's id, which is the name of its folder."""
_NOT_A_NAME = "none"
_GROUPS = {SYSTEM: "systems", WORKLOAD: "workloads", NEMESIS: "faults", CHECK: "checks"}


@dataclass(frozen=True)
class Plugin:
    """A plug-in that was named: its kind and name, ``FILE:ATTRIBUTE`` (or ``MODULE:ATTRIBUTE`` of a package), the
    digest of its file."""

    kind: str
    name: str
    target: str
    sha256: str


_loaded: dict[tuple[str, str], Plugin] = {}
_digests: dict[Path, str] = {}
"""Of files that were loaded, as they were then."""


def _registry(kind: str) -> Registry[Any]:
    registries: dict[str, Registry[Any]] = {SYSTEM: SYSTEMS, WORKLOAD: WORKLOADS, NEMESIS: FAULTS, CHECK: CHECKS}
    return registries[kind]


def resolve(kind: str, text: str) -> str:
    """The registered name that a person means: a name as it is, or ``FILE:ATTRIBUTE``, which is loaded.

    Raises:
        UsageError: the file can't be loaded, or holds nothing of that kind.
    """
    file, colon, attribute = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if text.endswith(".py") or "/" in text:
            raise UsageError(f"--{kind} {text}: write it as FILE.py:CLASS")
        name = _installed(kind, text)
        if kind == CHECK:
            _registry(kind).entry(name)  # nobody else looks it up
            if (kind, name) not in _loaded:
                raise UsageError(f"--check {name}: this one is always asked; name one of your own, as FILE.py:CLASS")
        return name
    return _load_file(kind, Path(file), attribute)


def resolve_all(kind: str, text: str) -> str:
    """``resolve`` for several, joined by commas."""
    return ",".join(resolve(kind, part.strip()) if part.strip() else part for part in text.split(","))


def load(arguments: Iterable[str]) -> None:
    """Load the plug-ins that another process of ours has loaded, from what ``arguments`` of it returned.

    Raises:
        UsageError: one can't be loaded, or has changed meanwhile.
    """
    for text in arguments:
        told = Plugin(**json.loads(text))
        file, _, attribute = told.target.rpartition(":")
        if file.endswith(".py"):
            _load_file(told.kind, Path(file), attribute)
        else:
            _installed(told.kind, told.name)
        found = _loaded.get((told.kind, told.name))
        if found is None or found.sha256 != told.sha256:
            raise UsageError(f"{told.target}: the {told.kind} {told.name!r} has changed since the run began")


def arguments() -> list[str]:
    """What another process of ours has to be given so that it has the same plug-ins."""
    return [json.dumps(asdict(plugin)) for plugin in _loaded.values()]


def preparation() -> Callable[[], None] | None:
    """What a process that Spark starts has to call so that it has the same plug-ins; None where there are none."""
    return functools.partial(load, arguments()) if _loaded else None


def named() -> list[dict[str, str]]:
    """The plug-ins in use, as run.json tells them."""
    return [asdict(plugin) for plugin in _loaded.values()]


def typed(kind: str, name: str) -> str:
    """What a person types for a name: that of a plug-in in a file is ``FILE:ATTRIBUTE``."""
    found = _loaded.get((kind, name))
    return found.target if found is not None and ".py:" in found.target else name


def check_names() -> list[str]:
    """Names of the checks that are plug-ins."""
    return [plugin.name for plugin in _loaded.values() if plugin.kind == CHECK]


def checks() -> list[str]:
    """The checks that are plug-ins, as a person types them."""
    return [typed(CHECK, name) for name in check_names()]


def demand_same(info: Mapping[str, Any], where: str) -> None:
    """See that the plug-ins with which a run was made are in use, unchanged.

    Raises:
        HistoryError: one is not; the message says what to type.
    """
    made_with = info.get("plugins") or []
    if not isinstance(made_with, Sequence) or not all(isinstance(each, Mapping) for each in made_with):
        raise HistoryError(f"{where}: it does not say properly which plug-ins it was made with")
    missing = []
    for each in made_with:
        kind, name, target = (str(each.get(field)) for field in ("kind", "name", "target"))
        if (kind, name) not in _loaded and _is_installed(kind, name, target, each.get("sha256")):
            _installed(kind, name)
        found = _loaded.get((kind, name))
        if found is None:
            missing.append(f"--{kind} FILE:{target.rpartition(':')[2]}")
        elif found.sha256 != each.get("sha256"):
            raise HistoryError(f"{where} was made with another {found.target}: its digest differs")
    if missing:
        raise HistoryError(f"{where} was made with plug-ins that are not in use here: add {' '.join(missing)}")


def forget() -> None:
    """Forget all plug-ins, as if none had been named."""
    for kind, name in list(_loaded):
        _registry(kind).remove(name)
        del _loaded[kind, name]


def _is_installed(kind: str, name: str, target: str, sha256: object) -> bool:
    """Whether the very same plug-in is installed here as an entry point; its module is not loaded to find out."""
    if kind not in _GROUPS:
        return False
    for point in importlib.metadata.entry_points(group=f"stormproof.{_GROUPS[kind]}", name=name):
        try:
            spec = importlib.util.find_spec(point.module)
        except (ImportError, ValueError):
            return False
        return (point.value == target and spec is not None and spec.origin is not None
                and Path(spec.origin).is_file() and _digest(Path(spec.origin)) == sha256)  # fmt: skip
    return False


def load_installed() -> None:
    """Load all plug-ins that are installed, as if they were named; those that can't be loaded are left out."""
    for kind, group in _GROUPS.items():
        for point in importlib.metadata.entry_points(group=f"stormproof.{group}"):
            with contextlib.suppress(UsageError):
                _installed(kind, point.name)


def _installed(kind: str, name: str) -> str:
    """A name of ours, or that of an entry point, which is loaded."""
    if name in _registry(kind):
        return name
    for point in importlib.metadata.entry_points(group=f"stormproof.{_GROUPS[kind]}", name=name):
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{point.value} can't be loaded: {type(error).__name__}: {error}") from error
        path = Path(str(sys.modules[point.module].__file__))
        _register(kind, found, point.value, _digest(path), name)
        break
    return name


def _load_file(kind: str, path: Path, attribute: str) -> str:
    path = path.resolve()
    target = f"{path}:{attribute}"
    for plugin in _loaded.values():
        if (plugin.kind, plugin.target) == (kind, target):
            return plugin.name
    module = _module(path)
    if not hasattr(module, attribute):
        raise UsageError(f"{path} has no {attribute!r}; write --{kind} FILE:CLASS")
    return _register(kind, getattr(module, attribute), target, _digests[path], None)


def _module(path: Path) -> ModuleType:
    name = f"stormproof_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As for a script: what lies beside the file can be imported.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    _digests[path] = _digest(path)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    return module


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


def _register(kind: str, found: object, target: str, sha256: str, name: str | None) -> str:
    registry = _registry(kind)
    # A system or check is an instance; a class will do where it takes no arguments.
    if isinstance(found, type) and kind in (SYSTEM, CHECK):
        try:
            found = found()
        except Exception as error:  # it is the user's own
            reason = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
            raise UsageError(f"{target} can't be made: {reason}") from error
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise UsageError(f"{target} can't be made: it lacks {missing}")
    accepted = registry.accept(found, target)
    called = name or str(getattr(accepted, "name", "") or target.rpartition(":")[2].lower())
    if not _NAME.fullmatch(called) or called == _NOT_A_NAME:
        raise UsageError(f"{target}: {called!r} can't be its name; letters, digits, '_', '-' and '.' can")
    accepted.name = called
    summary = next(iter((getattr(found, "__doc__", None) or "").strip().splitlines()), "of a plug-in")
    registry.add(Entry(called, summary, target), accepted)
    _loaded[kind, called] = Plugin(kind, called, target, sha256)
    return called
