"""``make vagrant-demo``: create hosts with `vagrant up`, run the demo's two tests on them over SSH, and remove the
hosts.

Machines that existed before stay. The keys of newly created machines are trusted at first contact, and stored in a file
next to Vagrant's own notes. This is safe because these machines are only on this machine's own network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.backends.image import registry_answers
from harness.backends.launch import as_root
from harness.cli.app import run_app
from harness.cli.common import SET_HELP
from stormproof.errors import EXIT_ERROR, BackendError, UsageError
from stormproof.timeout_scale import VARIABLE

PROJECT = Path(__file__).resolve().parents[2]
NOTES = PROJECT / ".vagrant" / "stormproof"
"""The folder of the SSH configuration and the keys of the machines."""
OWN_BOX = "stormproof-host"
"""The product of ``nodes/image/vagrant/build``: a box for libvirt, an image for Docker."""
PUBLIC_BOX = "debian/bookworm64"
SLOWER_EMULATED = 5.0
SLOWER_HELP = f"stretch all times and limits  [default: 1; {SLOWER_EMULATED:g} where processors are emulated]"

_BUILD = PROJECT / "nodes" / "image" / "vagrant" / "build"
_LIBVIRT_SOCKETS = ("/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock")


@dataclass(frozen=True)
class Provider:
    """One way to create machines. ``missing`` is None if it can be used here. ``mend`` is the command that makes it
    usable."""

    name: str
    missing: str | None
    mend: str
    emulates: bool = False


def find_providers() -> list[Provider]:
    """Return the providers that Vagrant could use here, the most capable first: machines before containers, containers
    before emulation."""
    box = Provider("virtualbox", None if shutil.which("VBoxManage") else "VirtualBox is not installed",
                   f"{as_root()}apt-get install virtualbox")
    docker = Provider("docker", _docker_missing(), f"{as_root()}apt-get install docker.io, and start it")
    emulates = not re.search(r"\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text())
    packages = "vagrant-libvirt libvirt-daemon-system libvirt-clients qemu-system-x86"
    libvirt = Provider("libvirt", _libvirt_missing(), f"{as_root()}apt-get install {packages}, and start libvirtd",
                       emulates)
    return [box, docker, libvirt] if emulates else [box, libvirt, docker]


def choose_provider(found: Sequence[Provider], requested: str | None) -> Provider:
    """Return the requested provider, or the first that can be used.

    Raises:
        UsageError: no provider has that name.
        BackendError: it can't be used, or none can; the message names the command that makes it usable.
    """
    if requested:
        named = [provider for provider in found if provider.name == requested]
        if not named:
            names = ", ".join(provider.name for provider in found)
            raise UsageError(f"unknown provider {requested!r} (known: {names})")
        if named[0].missing:
            raise BackendError(f"{named[0].missing}; run: {named[0].mend}")
        return named[0]
    for provider in found:
        if not provider.missing:
            return provider
    reasons = "; ".join(f"{provider.name}: {provider.missing}" for provider in found)
    easiest = next((provider for provider in found if provider.name == "docker"), found[0])
    raise BackendError(f"Vagrant has no provider here ({reasons}); run: {easiest.mend}")


def _docker_missing() -> str | None:
    from harness.backends.docker import connect

    if not shutil.which("docker"):
        return "the command docker is not installed"
    try:
        connect(2.0).close()
    except BackendError as error:
        return str(error).partition("; ")[0]
    return None


def _libvirt_missing() -> str | None:
    if not any(Path(socket).exists() for socket in _LIBVIRT_SOCKETS):
        return "libvirt is not installed or does not run"
    listed = subprocess.run(["vagrant", "plugin", "list"], capture_output=True, text=True, check=False)
    return None if "vagrant-libvirt" in listed.stdout else "Vagrant has no plugin vagrant-libvirt"


def parse_status(text: str) -> dict[str, tuple[str, str]]:
    """Return machine -> (provider, state) from the output of ``vagrant status --machine-readable``."""
    facts: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        _, machine, kind, *data = line.split(",")
        if machine and kind in ("provider-name", "state") and data:
            facts.setdefault(machine, {})[kind] = data[0]
    return {machine: (each.get("provider-name", ""), each["state"])
            for machine, each in facts.items() if "state" in each}


class Vagrant:
    """Vagrant's commands on the project's Vagrantfile, with one provider and number of nodes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def run(self, *arguments: str) -> None:
        """Run a command and show its output. Raises BackendError when it fails."""
        done = subprocess.run(["vagrant", *arguments], cwd=PROJECT, env=self.environment, check=False)
        if done.returncode:
            raise BackendError(f"vagrant {' '.join(arguments)} failed with status {done.returncode}; see above")

    def ask(self, *arguments: str) -> str:
        """Return the output of a command. Raises BackendError when it fails."""
        done = subprocess.run(["vagrant", *arguments], cwd=PROJECT, env=self.environment, capture_output=True,
                              text=True, check=False)
        if done.returncode:
            raise BackendError(f"vagrant {' '.join(arguments)} failed: {' '.join(done.stderr.split())}")
        return done.stdout

    def python(self, module: str, *arguments: str) -> int:
        """Run a module of ours in this environment and show its output. Return its exit status."""
        return subprocess.run([sys.executable, "-m", module, *arguments], env=self.environment, check=False).returncode


def ensure_box(provider: Provider, vagrant: Vagrant) -> str | None:
    """Return our own box (or image), built if necessary; None if the public one is available.

    Raises:
        BackendError: neither is available.
    """
    if provider.name == "docker":
        there: Callable[[], bool] = _has_image
        public: Callable[[], bool] = _registry_answers
    else:
        boxes = vagrant.ask("box", "list").splitlines()
        there = lambda: any(re.match(rf"{OWN_BOX} +\({provider.name},", box) for box in boxes)  # noqa: E731
        public = lambda: _add_public_box(provider.name, boxes, vagrant)  # noqa: E731
    if there():
        return OWN_BOX
    if public():
        return None
    if provider.name == "virtualbox":
        raise BackendError(f"the box {PUBLIC_BOX} can't be reached; name another: STORMPROOF_BOX=BOX make vagrant-demo")
    if subprocess.run([_BUILD, provider.name], check=False).returncode:
        raise BackendError(f"{_BUILD.relative_to(PROJECT)} {provider.name} failed; see above")
    return OWN_BOX


def _has_image() -> bool:
    return subprocess.run(["docker", "image", "inspect", OWN_BOX], capture_output=True, check=False).returncode == 0


def _registry_answers() -> bool:
    from harness.backends.docker import connect

    client = connect()
    try:
        return registry_answers(client)
    finally:
        client.close()


def _add_public_box(provider: str, boxes: Sequence[str], vagrant: Vagrant) -> bool:
    if any(re.match(rf"{PUBLIC_BOX} +\({provider},", box) for box in boxes):
        return True
    try:
        vagrant.ask("box", "add", PUBLIC_BOX, "--provider", provider)
    except BackendError:
        return False
    return True


def vagrant_demo(
    provider: Annotated[str | None, typer.Option(help="virtualbox, libvirt, docker  [default: the strongest]")] = None,
    nodes: Annotated[int, typer.Option(help="number of machines; the demo uses three", min=3, max=99)] = 3,
    seed: Annotated[int, typer.Option(help="seed of the two tests")] = 7,
    slower: Annotated[float | None, typer.Option(help=SLOWER_HELP, min=1)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave the machines up at the end")] = False,
    store: Annotated[Path, typer.Option(help="folder that holds the runs")] = Path("runs"),
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
) -> None:
    """Bring up machines with Vagrant, run the demo's two tests on them over SSH, and take the machines away."""
    if not shutil.which("vagrant"):
        raise BackendError(f"vagrant is not installed; run: {as_root()}apt-get install vagrant (docs/backends.md)")
    vagrant = Vagrant({**os.environ, "NODES": str(nodes)})
    before = {machine: each for machine, each in parse_status(vagrant.ask("status", "--machine-readable")).items()
              if each[1] != "not_created"}
    used = next((name for name, _ in before.values()), None)
    chosen = choose_provider(find_providers(), used or provider)
    print(f"provider {chosen.name}{' (processors are emulated)' if chosen.emulates else ''}", flush=True)
    vagrant.environment["VAGRANT_DEFAULT_PROVIDER"] = chosen.name
    if "STORMPROOF_BOX" not in vagrant.environment and (box := ensure_box(chosen, vagrant)):
        vagrant.environment["STORMPROOF_BOX"] = box
    stretch = slower or (SLOWER_EMULATED if chosen.emulates else 1.0)
    vagrant.environment[VARIABLE] = str(stretch)
    options = [f"--set={each}" for each in settings or []]
    status = EXIT_ERROR
    try:
        vagrant.run("up", f"--provider={chosen.name}")
        files = note_hosts(vagrant, fresh=not before)
        options += [f"--set={name}={path}" for name, path in files.items()]
        status = vagrant.python("harness", "demo", "--backend=ssh", f"--seed={seed}", f"--store={store}",
                                f"--slower={stretch}", *options)
    finally:
        if keep or before:
            print(f"the machines stay: vagrant destroy -f removes them; {NOTES / 'ssh-config'} names them", flush=True)
        else:
            vagrant.run("destroy", "-f")
    raise typer.Exit(status)


def note_hosts(vagrant: Vagrant, fresh: bool) -> dict[str, Path]:
    """Write the SSH configuration and learn the machines' keys. Return the settings that name both files.

    ``fresh`` machines have new keys. Raises BackendError when a machine can't be reached or prepared.
    """
    NOTES.mkdir(parents=True, exist_ok=True)
    config, known = NOTES / "ssh-config", NOTES / "known_hosts"
    config.write_text(vagrant.ask("ssh-config"), encoding="utf-8")
    if fresh:
        known.unlink(missing_ok=True)
    if vagrant.python("harness", "prepare", "--ssh-config", str(config), "--known-hosts", str(known),
                      "--accept-host-key", "--yes"):
        raise BackendError("the machines could not be prepared; see above")
    return {"ssh_config": config, "known_hosts": known}


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(vagrant_demo)
    run_app(app)
