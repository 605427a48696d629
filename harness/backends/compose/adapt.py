"""Adapt a user's Compose project to faults: refusals, changes, and the override that shows the changes.

The user's file is never edited. The changes are collected in one override, which the run's folder keeps; it contains
nothing of the user's file that could be secret.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.backends.compose.addresses import fixed_addresses, with_ranges
from stormproof.errors import UsageError

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
SDK_FOLDER = "/stormproof-sdk"
"""The folder in containers into which Antithesis's SDK writes."""
OUTPUT_DIR, LOCAL_OUTPUT = "ANTITHESIS_OUTPUT_DIR", "ANTITHESIS_SDK_LOCAL_OUTPUT"
"""The variables that name the SDK's output: a folder for ``sdk.jsonl``, to which any program may append; and a file of
one process, which the SDK's libraries truncate when they open it."""
SDK_ENVIRONMENT = {OUTPUT_DIR: SDK_FOLDER, LOCAL_OUTPUT: f"{SDK_FOLDER}/service.jsonl"}
_NETWORK_DRIVERS = (None, "", "bridge", "default")


@dataclass(frozen=True)
class Machine:
    """A container of the project: its name here, its service, and its number among the service's containers."""

    name: str
    service: str
    number: int = 1


@dataclass(frozen=True)
class Disk:
    """A folder of a machine that a volume holds: its path in the container, and the volume's name (anonymous: empty).
    """

    path: str
    volume: str = ""


@dataclass
class Adapted:
    """The project to start: ``config`` is the whole file, ``override`` has the additions and changes, and ``notes``
    describe them in words."""

    config: dict[str, Any]
    override: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def machines_of(config: Mapping[str, Any]) -> tuple[Machine, ...]:
    """Return all containers of a project; a service with several has the machines NAME-1 to NAME-N."""
    found: list[Machine] = []
    for name, service in config["services"].items():
        count = scale_of(service)
        found += [Machine(name, name)] if count == 1 else [Machine(f"{name}-{i}", name, i) for i in range(1, count + 1)]
    names = [machine.name for machine in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--compose: two containers would be called {name}; rename a service")
    return tuple(found)


def scale_of(service: Mapping[str, Any]) -> int:
    """Return the number of a service's containers."""
    found = service.get("scale", (service.get("deploy") or {}).get("replicas", 1))
    return int(found) if isinstance(found, int | str) and str(found).isdigit() else 1


def demand_separate(config: Mapping[str, Any]) -> None:
    """Check that a project stays on its own: nothing that existed before is used, changed or removed.

    Raises:
        UsageError: a service or an object can't be tested; the message says what to change.
    """
    for name, service in config["services"].items():
        mode, ipc = str(service.get("network_mode") or ""), str(service.get("ipc") or "")
        for what, wrong, why in (
            ("network_mode", mode if mode not in ("", "bridge", "none") else "", "its faults would hit others"),
            ("pid", str(service.get("pid") or ""), "a kill would end processes of others"),
            ("ipc", ipc if ipc.startswith(("host", "container:")) else "", "it shares memory with others"),
            ("privileged", "true" if service.get("privileged") else "", "it could undo faults and change this machine"),
        ):
            if wrong:
                raise UsageError(f"--compose: service {name} has {what}: {wrong}, so {why}; remove that line")
        for source in (volume.get("source") for volume in volumes_of(service) if volume.get("type") == "bind"):
            if source and any(Path(socket).resolve().is_relative_to(Path(source).resolve()) for socket in SOCKETS):
                raise UsageError(f"--compose: service {name} mounts Docker's socket ({source}), and could undo faults; "
                                 "remove that mount")  # fmt: skip
        used = [*(service.get("external_links") or ()), *(each for each in service.get("volumes_from") or ()
                                                          if str(each).startswith("container:"))]  # fmt: skip
        if used:
            raise UsageError(f"--compose: service {name} uses a container of others ({used[0]}); remove external_links "
                             "and volumes_from")  # fmt: skip
    for kind in ("networks", "volumes"):
        for name, found in (config.get(kind) or {}).items():
            if (found or {}).get("external"):
                raise UsageError(f"--compose: {kind[:-1]} {name} is external: faults and the clean-up would hit other "
                                 "projects; let the file create it")  # fmt: skip
    for name, found in (config.get("networks") or {}).items():
        if (found or {}).get("driver") not in _NETWORK_DRIVERS:
            raise UsageError(f"--compose: network {name} has the driver {found['driver']}; faults need bridge")


def volumes_of(service: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a service's mounts in the long form: ``type``, ``source``, ``target``, ``read_only``."""
    found = []
    for volume in service.get("volumes") or ():
        if isinstance(volume, dict):
            found.append(dict(volume))
            continue
        parts = str(volume).split(":")
        if len(parts) == 1:
            found.append({"type": "volume", "source": "", "target": parts[0]})
        else:
            kind = "bind" if parts[0].startswith(("/", ".", "~")) else "volume"
            found.append({"type": kind, "source": parts[0], "target": parts[1],
                          "read_only": "ro" in parts[2].split(",") if len(parts) > 2 else False})  # fmt: skip
    return found


def disks_of(config: Mapping[str, Any], service: str) -> tuple[Disk, ...]:
    """Return the volumes of a service that can be put on a disk that fails: writable, and of this service alone."""
    users: dict[str, set[str]] = {}
    for name, each in config["services"].items():
        for volume in volumes_of(each):
            users.setdefault(str(volume.get("source") or ""), set()).add(name)
    return tuple(
        Disk(volume["target"], str(volume.get("source") or ""))
        for volume in volumes_of(config["services"][service])
        if volume.get("type") == "volume" and not volume.get("read_only")
        and (not volume.get("source") or users[volume["source"]] == {service})
    )


def without_disk(config: Mapping[str, Any], service: str) -> str:
    """Return why a service has no disk that can fail; empty if it has one."""
    if disks_of(config, service):
        return ""
    kinds = {str(volume.get("type")) for volume in volumes_of(config["services"][service])}
    if "volume" in kinds:
        return f"service {service} shares its volume with other services"
    if "bind" in kinds:
        return f"service {service} keeps its data in a folder of this machine (a bind mount); use a named volume"
    return f"service {service} has no volume: its data is in the container's own layer; declare a volume for it"


def adapt(config: Mapping[str, Any], labels: Mapping[str, str], bridges: Mapping[str, str],
          disks: Mapping[str, Sequence[tuple[str, str]]] | None = None, *,
          clocks: Mapping[str, tuple[Mapping[str, str], tuple[str, str]]] | None = None,
          sdk: Mapping[str, str] | None = None, folder: Path | None = None, places: int = 0) -> Adapted:  # fmt: skip
    """Return the project as it is started.

    Args:
        config: the project as Compose resolves it.
        labels: labels of everything that is created, by which the clean-up finds it.
        bridges: the name of each network's bridge on this machine.
        disks: service -> pairs of a folder of this machine and the container's folder that is mounted there instead of
            a volume.
        clocks: service -> variables that load a clock, and the pair of folders for its mount.
        folder: the folder of the user's file, which names the images that are built.
        places: the number of client places, which have an address on each network.
        sdk: service -> folder of this machine into which Antithesis's SDK writes in the service's containers.
    """
    whole = copy.deepcopy(dict(config))
    project = whole.pop("name", "")  # version 2 of Compose writes the names that it would give, too
    override: dict[str, Any] = {"services": {}, "networks": {}, "volumes": {}}
    notes: list[str] = []
    whole["networks"] = dict(whole.get("networks") or {})
    if any("default" in networks_of(service) for service in whole["services"].values()):
        whole["networks"].setdefault("default", {})
    for name, service in whole["services"].items():
        changes: dict[str, Any] = {"labels": dict(labels)}
        service["labels"] = {**_mapping(service.get("labels")), **labels}
        if service.get("network_mode") == "bridge":
            del service["network_mode"]
            changes["network_mode"] = None
            notes.append(f"{name}: it is on the project's network default, not on Docker's own bridge")
        if service.pop("ports", None):
            changes["ports"] = []
            notes.append(f"{name}: its published ports are dropped; clients join its networks")
        if fixed := service.pop("container_name", None):
            changes["container_name"] = None
            service["networks"] = {network: {**(each or {}), "aliases": [*((each or {}).get("aliases") or ()), fixed]}
                                   for network, each in _networks(service).items()}  # fmt: skip
            notes.append(f"{name}: its container is not called {fixed}, which is an alias of it on its networks")
        if service.get("build") and not service.get("image"):
            service["image"] = changes["image"] = _image(folder, name)
        if mounted := (disks or {}).get(name):
            targets = {target for _, target in mounted}
            kept = [each for each in volumes_of(service) if each["target"] not in targets]
            changes["volumes"] = [{"type": "bind", "source": source, "target": target} for source, target in mounted]
            service["volumes"] = [*map(_short_volume, kept), *changes["volumes"]]
            notes.append(f"{name}: {', '.join(sorted(targets))} is on a disk that can fail")
        if clock := (clocks or {}).get(name):
            variables, (source, target) = clock
            mount = {"type": "bind", "source": source, "target": target, "read_only": True}
            _give(service, changes, variables, mount)
            notes.append(f"{name}: its programs have a clock that can be set")
        if sdk and name in sdk:
            _give(service, changes, SDK_ENVIRONMENT, {"type": "bind", "source": sdk[name], "target": SDK_FOLDER})
            notes.append(f"{name}: what Antithesis's SDK writes is collected from {SDK_FOLDER}")
        override["services"][name] = changes
    for name in whole["networks"]:
        network = whole["networks"][name] = dict(whole["networks"][name] or {})
        fixed = network.pop("name", None)
        if fixed not in (None, f"{project}_{name}"):
            notes.append(f"network {name}: it is not called {fixed}, which may be another's")
        options = {"com.docker.network.bridge.name": bridges[name]} if name in bridges else {}
        network["labels"] = {**_mapping(network.get("labels")), **labels}
        network["driver_opts"] = {**(network.get("driver_opts") or {}), **options}
        override["networks"][name] = {"labels": dict(labels), "driver_opts": options}
        if addresses := fixed_addresses(whole["services"], name):
            joined = sum(scale_of(service) for service in whole["services"].values() if name in networks_of(service))
            network["ipam"] = with_ranges(name, network.get("ipam") or {}, addresses, joined + places)
            override["networks"][name]["ipam"] = network["ipam"]
            notes.append(f"network {name}: its other addresses come from a range without those that services fix")
    whole["volumes"] = dict(whole.get("volumes") or {})
    for name in whole["volumes"]:
        volume = whole["volumes"][name] = dict(whole["volumes"][name] or {})
        fixed = volume.pop("name", None)
        if fixed not in (None, f"{project}_{name}"):
            notes.append(f"volume {name}: it is not called {fixed}, which may be another's")
        volume["labels"] = {**_mapping(volume.get("labels")), **labels}
        override["volumes"][name] = {"labels": dict(labels)}
    return Adapted(whole, override, notes)


def _give(service: dict[str, Any], changes: dict[str, Any], variables: Mapping[str, str], mount: Mapping[str, Any]
          ) -> None:
    """Add variables and a mount to a service, and to the override."""
    service["environment"] = {**_mapping(service.get("environment")), **variables}
    service["volumes"] = [*(service.get("volumes") or ()), _short_volume(mount)]
    changes["environment"] = {**changes.get("environment", {}), **variables}
    changes["volumes"] = [*changes.get("volumes", ()), dict(mount)]


def _networks(service: Mapping[str, Any]) -> dict[str, Any]:
    found = service.get("networks") or {"default": None}
    return dict(found) if isinstance(found, dict) else dict.fromkeys(found)


def networks_of(service: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a service's networks in its project."""
    return () if service.get("network_mode") == "none" else tuple(_networks(service))


def _mapping(found: Any) -> dict[str, str]:
    """Return labels as a mapping; Compose also allows a list of ``NAME=VALUE``."""
    if isinstance(found, list):
        return {str(each).partition("=")[0]: str(each).partition("=")[2] for each in found}
    return dict(found or {})


def _short_volume(volume: Mapping[str, Any]) -> Any:
    """Return a mount in the short form where it has no further settings: version 1 of Compose takes both."""
    if set(volume) <= {"type", "source", "target", "read_only"}:
        parts = [part for part in (volume.get("source"), volume["target"]) if part]
        return ":".join([*parts, *(["ro"] if volume.get("read_only") else [])])
    return dict(volume)


def _image(folder: Path | None, service: str) -> str:
    """Return the name of a service's image, the same for all runs of one file: it is built once."""
    digest = hashlib.sha256(str(folder or "").encode()).hexdigest()[:8]
    return f"stormproof-compose-{digest}-{service.lower()}"
