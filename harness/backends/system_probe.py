"""The requirements of real systems on this machine, and whether they are met: for ``stormproof doctor``."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
from collections.abc import Callable, Sequence

import docker
from docker.errors import DockerException

from harness.backends.docker import connect
from harness.backends.image import has_image, registry_answers
from harness.backends.launch import as_root, find_tool
from nodes.systems.catalog import SYSTEMS
from nodes.systems.clients import extras_of
from stormproof.contracts.backend import Capability
from stormproof.errors import BackendError, StormproofError
from stormproof.fetch.clients import CLIENTS, dotted, needed_by_all
from stormproof.fetch.fetched import Fetched
from stormproof.fetch.recipes import recipes
from stormproof.shell_system import ShellSystem

_LIMIT_S = 2.0

Images = Callable[[Sequence[str]], str]
"""Returns Docker's answer about the image with these Debian packages."""


def probe_systems() -> list[Capability]:
    """Return the availability of every system that is started by a command, and the commands that install it here."""
    systems = [system for name in SYSTEMS.names() if isinstance(system := SYSTEMS.load(name), ShellSystem)]
    images, close = _images()
    try:
        return [_probe(system, images) for system in systems]
    finally:
        close()


def probe_clients() -> list[Capability]:
    """Return the availability of the clients of registries that bring brokers (``stormproof fetch``)."""
    found = []
    for client in CLIENTS.values():
        need = needed_by_all(client.program)
        brings = ", ".join(name for name, each in recipes().items() if each.client == client.program)
        trouble = client.trouble(need)
        detail = trouble or f"{client.title} {dotted(need)} or newer ({client.find()})"
        prefix = as_root() if client.install.startswith("apt-get") else ""
        found.append(Capability(client.program, not trouble, f"{detail}, to fetch {brings}",
                                f"run: {prefix}{client.install}" if trouble else ""))  # fmt: skip
    return found


def _probe(system: ShellSystem, images: Images) -> Capability:
    packages = missing_packages(system.packages)
    clients = [name for name in system.distributions if not _is_installed(name)]
    commands = []
    if packages:
        commands.append(f"{as_root()}apt-get install --no-install-recommends {' '.join(system.packages)}")
    if clients:
        ours = type(system).__module__.startswith("nodes.")
        extras = f"'stormproof[{','.join(extras_of(clients))}]'"
        commands.append(f"pip install {extras if ours else ' '.join(clients)}")
    image = images(system.packages)
    ready = f"ready ({', '.join((*system.packages, *(() if clients else system.distributions)))})"
    local = f"local: {' '.join(packages)} not installed" if packages else f"local: {ready}"
    python = f"Python packages: {' '.join(clients)} not installed" if clients else ""
    fetched = "" if system.packaged or not system.fetched else _fetched(Fetched(system.fetched))
    detail = "; ".join(part for part in (local, f"docker: {image}", python, fetched) if part)
    there = not clients and (not packages or image in (_THERE, _TO_BUILD))
    return Capability(system.name, there, detail, f"run: {' && '.join(commands)}" if commands else "")


def _fetched(broker: Fetched) -> str:
    """Return whether the broker of a system is in the user's cache."""
    try:
        there = broker.is_there()
    except StormproofError as error:
        return str(error)
    return f"{broker} is fetched" if there else f"{broker}: the first test fetches it by {broker.recipe.client}"


_THERE, _TO_BUILD, _CANNOT = "image is there", "image is built by the first test", "image can't be built here"


def _images() -> tuple[Images, Callable[[], None]]:
    """Return a function that asks Docker for images, and a function that closes the connection."""
    try:
        client: docker.DockerClient = connect(_LIMIT_S)
    except BackendError:
        return lambda packages: "not usable here", lambda: None

    @functools.cache
    def can_build() -> bool:
        return find_tool("mmdebstrap") is not None or registry_answers(client)

    def ask(packages: Sequence[str]) -> str:
        try:
            return _THERE if has_image(client, packages) else _TO_BUILD if can_build() else _CANNOT
        except DockerException as error:
            return f"failed: {' '.join(str(error).split())}"

    return ask, client.close


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Return those of some Debian packages that this machine lacks: all, where there is no dpkg."""
    if not packages:
        return []
    command = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *packages]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        found = ""
    there = {line.partition(" ")[2] for line in found.splitlines() if line.startswith("installed ")}
    return [package for package in packages if package not in there]


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
