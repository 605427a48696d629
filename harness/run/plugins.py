"""Plug-ins: systems, workloads, faults and checks from a user's file or from an installed package.

A plug-in is named on the command line as ``./mine.py:MyBroker``, or by an entry point of the group
``stormproof.systems``, ``.workloads``, ``.faults`` or ``.checks``. The processes of a run receive it through the
command lines that start them. It is never loaded because a run's folder names it, since run folders may come from
strangers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from checkers.catalog import CHECKS
from harness.run import frozen
from harness.run.frozen import Source
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import HistoryError, UsageError
from stormproof.registry import Entry, Registry
from stormproof.run_folder import PLUGIN_COPIES
from workloads.catalog import WORKLOADS

SYSTEM, WORKLOAD, NEMESIS, CHECK = "system", "workload", "nemesis", "check"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""The names that may be part of a run's id, which is the name of its folder."""
_NOT_A_NAME = "none"
_GROUPS = {SYSTEM: "systems", WORKLOAD: "workloads", NEMESIS: "faults", CHECK: "checks"}


@dataclass(frozen=True)
class Plugin:
    """A plug-in that is in use: its kind and name, ``FILE:ATTRIBUTE`` (or ``MODULE:ATTRIBUTE`` of a package), and the
    digest of its file."""

    kind: str
    name: str
    target: str
    sha256: str
    helpers: Mapping[str, str] = field(default_factory=dict)
    """The user's modules that it imports -> the digests of their files."""


_PREFIX = "stormproof_plugin_"
"""The prefix of the module names of plug-in files."""
_modules: set[str] = set()
"""Modules and packages that belong to plug-ins, in addition to those of files."""
_loaded: dict[tuple[str, str], Plugin] = {}
_sources: dict[str, dict[str, Source]] = {}
"""Module of a plug-in -> the sources of the plug-in and its helpers by module, as they were when it was loaded."""


def _registry(kind: str) -> Registry[Any]:
    registries: dict[str, Registry[Any]] = {SYSTEM: SYSTEMS, WORKLOAD: WORKLOADS, NEMESIS: FAULTS, CHECK: CHECKS}
    return registries[kind]


def resolve(kind: str, text: str, folder: Path = Path()) -> str:
    """Return the registered name that a person means: a plain name, or ``FILE:ATTRIBUTE``, which is loaded. A relative
    path starts from ``folder``.

    Raises:
        UsageError: the file can't be loaded, or holds nothing of that kind.
    """
    file, colon, attribute = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        if text.endswith(".py") or "/" in text:
            raise UsageError(f"--{kind} {text}: write it as FILE.py:CLASS")
        name = _installed(kind, text)
        if kind == CHECK:
            _registry(kind).entry(name)  # no other code looks it up
            if (kind, name) not in _loaded:
                raise UsageError(f"--check {name}: this one is always asked; name one of your own, as FILE.py:CLASS")
        return name
    return _load_file(kind, folder / file, attribute)


def resolve_all(kind: str, text: str, folder: Path = Path()) -> str:
    """Apply ``resolve`` to several names, joined by commas."""
    return ",".join(resolve(kind, part.strip(), folder) if part.strip() else part for part in text.split(","))


def resolve_any(text: str) -> str:
    """Return the registered name of a plug-in of any kind.

    Raises:
        UsageError: it can't be loaded, or is none.
    """
    first: UsageError | None = None
    for kind in _GROUPS:
        try:
            return resolve(kind, text)
        except UsageError as error:
            first = first or error
    assert first is not None
    raise first


def is_file(text: str) -> bool:
    """Return whether a text names a plug-in in a file, rather than by a name."""
    return text.rpartition(":")[0].endswith(".py")


def is_entry_point(kind: str, name: str) -> bool:
    """Return whether an installed package has a plug-in of this name."""
    return bool(importlib.metadata.entry_points(group=f"stormproof.{_GROUPS[kind]}", name=name))


def folder_of(kind: str, name: str) -> Path | None:
    """Return the folder of the file of a plug-in that is in use; None for any other name."""
    found = _loaded.get((kind, name))
    if found is None:
        return None
    file = found.target.rpartition(":")[0]
    return Path(file if file.endswith(".py") else str(sys.modules[file].__file__)).parent


def digests() -> list[str]:
    """Return the digests of all plug-ins in use and of the modules that they import, in a fixed order."""
    return sorted({digest for plugin in _loaded.values() for digest in (plugin.sha256, *plugin.helpers.values())})


def check_command(run_dir: Path) -> str:
    """Return the command that checks a run that was made with the plug-ins in use."""
    words = [word for plugin in _loaded.values() if is_file(plugin.target)
             for word in (f"--{plugin.kind}", plugin.target)]  # fmt: skip
    return shlex.join(["stormproof", "check", str(run_dir), *words])


def load(arguments: Iterable[str]) -> None:
    """Load the plug-ins of another Stormproof process, from the result of its ``arguments``.

    They are loaded from the sources that the other process read, even if their files have changed since.

    Raises:
        UsageError: one can't be loaded, or is a different plug-in here.
    """
    for text in arguments:
        told = json.loads(text)
        for module, packed in told.pop("sources").items():
            sources = {name: frozen.keep(name, Source.unpack(each)) for name, each in packed.items()}
            _sources.setdefault(module, sources)
        wanted = Plugin(**told)
        file, _, attribute = wanted.target.rpartition(":")
        if file.endswith(".py"):
            _load_file(wanted.kind, Path(file), attribute)
        else:
            _installed(wanted.kind, wanted.name)
        found = _loaded.get((wanted.kind, wanted.name))
        if found is None or found.sha256 != wanted.sha256:
            raise UsageError(f"{wanted.target}: the {wanted.kind} {wanted.name!r} is another one here")


def load_from(path: Path) -> None:
    """Apply ``load`` to the file that ``write_arguments`` has written, and remove the file."""
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
        path.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the plug-ins can't be read ({error})") from error
    load(texts)


def arguments() -> list[str]:
    """Return the data that another Stormproof process needs to load the same plug-ins."""
    return [json.dumps({**asdict(plugin), "sources": {
        module: {name: source.pack() for name, source in _sources[module].items()}
        for module in [_module_of(plugin)] if module in _sources}}) for plugin in _loaded.values()]  # fmt: skip


def write_arguments() -> Path | None:
    """Write the result of ``arguments`` to a private file, since command lines are short; return None if there are
    none."""
    if not _loaded:
        return None
    handle, name = tempfile.mkstemp(prefix="stormproof-plugins-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(arguments(), file)
    return Path(name)


def copy_to(run_dir: Path) -> None:
    """Copy the sources of the plug-ins in use into a run's folder, for people. Nothing imports them from there."""
    for plugin in _loaded.values():
        copy = copy_of(plugin.name, plugin.target)
        if copy is None or (module := _module_of(plugin)) not in _sources:
            continue
        for name, source in _sources[module].items():
            place = run_dir / copy
            if name != module:
                parts = name.split(".")
                place = place.parent.joinpath(*parts, "__init__.py") if source.package else \
                    place.parent.joinpath(*parts[:-1], f"{parts[-1]}.py")  # fmt: skip
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.content)


def copy_of(name: str, target: str) -> Path | None:
    """Return the place of the copy of a plug-in's file within a run's folder; None for an installed plug-in."""
    file, _, _ = target.rpartition(":")
    return Path(PLUGIN_COPIES, name, Path(file).name) if file.endswith(".py") and _NAME.fullmatch(name) else None


def _module_of(plugin: Plugin) -> str:
    file, _, _ = plugin.target.rpartition(":")
    return _name_of(Path(file)) if file.endswith(".py") else file


def preparation() -> Callable[[], None] | None:
    """Return the function that a process started by Spark calls to have the same plug-ins; None where there are
    none."""
    return functools.partial(load, arguments()) if _loaded else None


def named() -> list[dict[str, str]]:
    """Return the plug-ins in use, as recorded in run.json."""
    return [asdict(plugin) for plugin in _loaded.values()]


def typed(kind: str, name: str) -> str:
    """Return the text that a person types for a name: ``FILE:ATTRIBUTE`` for a plug-in in a file."""
    found = _loaded.get((kind, name))
    return found.target if found is not None and ".py:" in found.target else name


def check_names() -> list[str]:
    """Return the names of the checks that are plug-ins."""
    return [plugin.name for plugin in _loaded.values() if plugin.kind == CHECK]


def checks() -> list[str]:
    """Return the checks that are plug-ins, as a person types them."""
    return [typed(CHECK, name) for name in check_names()]


def demand_same(info: Mapping[str, Any], where: str, run_dir: Path | None = None) -> None:
    """Verify that the plug-ins with which a run was made are in use, unchanged. ``run_dir`` is the folder of possible
    copies.

    Raises:
        HistoryError: one is not in use or has changed; the message says what to type.
    """
    made_with = info.get("plugins") or []
    if not isinstance(made_with, Sequence) or not all(isinstance(each, Mapping) for each in made_with):
        raise HistoryError(f"{where}: it does not say properly which plug-ins it was made with")
    missing, changed = [], ""
    for each in made_with:
        kind, name, target = (str(each.get(field)) for field in ("kind", "name", "target"))
        if (kind, name) not in _loaded and _is_installed(kind, name, target, each.get("sha256")):
            _installed(kind, name)
        found = _loaded.get((kind, name))
        if found is None:
            missing.append(f"--{kind} FILE:{target.rpartition(':')[2]}")
        else:
            changed = changed or _difference(found, each)
    if changed:
        raise HistoryError(f"{where} was made with another {changed}{_by_copies(made_with, run_dir)}")
    if missing:
        raise HistoryError(f"{where} was made with plug-ins that are not in use here: add {' '.join(missing)}")


def _difference(found: Plugin, told: Mapping[str, Any]) -> str:
    """Return the difference between a plug-in and the one that a run was made with; empty if there is none."""
    if found.sha256 != told.get("sha256"):
        return f"{found.target}: its digest differs"
    helpers = told.get("helpers")
    for name, digest in helpers.items() if isinstance(helpers, Mapping) else ():
        if found.helpers.get(str(name), digest) != digest:  # the set of imported modules may depend on the machine
            return f"{name}, which {found.target} imports: its digest differs"
    return ""


def _by_copies(made_with: Sequence[Any], run_dir: Path | None) -> str:
    """Return the command that checks a run by the copies in its folder, if all copies exist."""
    words = []
    for each in made_with if run_dir is not None else ():
        kind, name, target = (str(each.get(field)) for field in ("kind", "name", "target"))
        copy = copy_of(name, target)
        if kind not in _GROUPS or copy is None or run_dir is None or not (run_dir / copy).is_file():
            return ""
        words += [f"--{kind}", f"{run_dir / copy}:{target.rpartition(':')[2]}"]
    if not words or run_dir is None:
        return ""
    command = shlex.join(["stormproof", "check", run_dir.name, "--store", str(run_dir.parent), *words])
    return f"; what it was made with is in its folder, and is run by: {command}"


def is_code_of_one(names: Mapping[str, Any]) -> bool:
    """Return whether code with these global names belongs to a plug-in. ``names`` may be those of any frame."""
    module = str(names.get("__name__", ""))
    return module in _modules or module.startswith(_PREFIX) or any(module.startswith(f"{each}.") for each in _modules)


def forget() -> None:
    """Forget all plug-ins, as if none had been named."""
    for kind, name in list(_loaded):
        _registry(kind).remove(name)
        del _loaded[kind, name]
    _sources.clear()
    frozen.forget()


def _is_installed(kind: str, name: str, target: str, sha256: object) -> bool:
    """Return whether the same plug-in is installed here as an entry point. This does not load its module."""
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
    """Load all installed plug-ins, as if they were named. Plug-ins that can't be loaded are left out."""
    for kind, group in _GROUPS.items():
        for point in importlib.metadata.entry_points(group=f"stormproof.{group}"):
            with contextlib.suppress(UsageError):
                _installed(kind, point.name)


def _installed(kind: str, name: str) -> str:
    """Return a built-in name unchanged, or load the entry point of that name."""
    if name in _registry(kind):
        return name
    for point in importlib.metadata.entry_points(group=f"stormproof.{_GROUPS[kind]}", name=name):
        before = dict(sys.modules)
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{point.value} can't be loaded: {type(error).__name__}: {error}") from error
        package = point.module.partition(".")[0]
        _modules.add(package)
        if point.module not in _sources:
            taken = frozen.imported_since(before, package)
            _sources[point.module] = {name: frozen.keep(name, source) for name, source in taken.items()}
        path = Path(str(sys.modules[point.module].__file__))
        source = _sources[point.module].get(point.module)
        _register(kind, found, point.value, source.sha256 if source is not None else _digest(path), point.module, name)
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
    name = _name_of(path)
    return _register(kind, getattr(module, attribute), target, _sources[name][name].sha256, name, None)


def _name_of(path: Path) -> str:
    return f"{_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _module(path: Path) -> ModuleType:
    name = _name_of(path)
    if name in sys.modules and name in _sources:
        return sys.modules[name]
    if name not in _sources and not path.is_file():
        raise UsageError(f"{path}: no such Python file")
    # As for a script, modules next to the file can be imported.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    if name not in _sources:
        source = Source(str(path), _read(path), package=False)
        found = {name: source, **frozen.helpers_of(source)}
        _sources[name] = {each: frozen.keep(each, kept) for each, kept in found.items()}
    before = dict(sys.modules)
    sys.modules.pop(name, None)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        _sources.pop(name)
        frozen.drop(name)
        raise UsageError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    for each, source in frozen.imported_since(before).items():
        _sources[name].setdefault(each, frozen.keep(each, source))
    _modules.update(set(_sources[name]) - {name})
    return module


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


def _digest(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _register(kind: str, found: object, target: str, sha256: str, module: str, name: str | None) -> str:
    registry = _registry(kind)
    # A system or check is an instance; a class is accepted if it takes no arguments.
    if isinstance(found, type) and kind in (SYSTEM, CHECK):
        try:
            found = found()
        except Exception as error:  # it is the user's code
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
    helpers = {each: source.sha256 for each, source in sorted(_sources.get(module, {}).items()) if each != module}
    _loaded[kind, called] = Plugin(kind, called, target, sha256, helpers)
    return called
