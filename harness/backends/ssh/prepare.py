"""``stormproof prepare``: a person confirms that hosts may be broken, and that their keys are right."""

from __future__ import annotations

import asyncio
import getpass
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.backends.base import installed_script
from harness.backends.shell import Output, Shell, ShellChannel
from harness.backends.ssh.connection import (
    CONNECT_LIMIT,
    UnknownHostKey,
    dial,
    fingerprint,
    hang_up,
    open_root_shell,
)
from harness.backends.ssh.facts import FACTS_SCRIPT, MARKER, lacks, missing_packages, parse_facts
from harness.backends.ssh.hosts import SshHost, default_known_hosts, own_key, read_hosts
from harness.backends.ssh.keys import make_key
from stormproof.errors import BackendError, StormproofError, UsageError

INSTALL_LIMIT = 300.0

Ask = Callable[[str], bool]
"""Asks a person a question; True is yes."""


def prepare(options: Mapping[str, Any], names: Sequence[str], ask: Ask, accept_key: Ask, tell: Callable[[str], None],
            packages: Sequence[str] = ()) -> None:
    """Prepare the named hosts (all of the file by default), one after the other.

    ``accept_key`` is asked about an unknown host key, ``ask`` about everything that changes a host. ``packages`` are
    further Debian packages for the hosts, those of a system under test.

    Raises:
        UsageError: a host is not in the file.
        StormproofError: a host cannot be reached or prepared, or the person said no.
    """
    hosts = read_hosts(options)
    by_name = {host.name: host for host in hosts}
    for name in names:
        if name not in by_name:
            raise UsageError(f"unknown host {name!r} (known: {', '.join(by_name)})")
    known_hosts = Path(str(options.get("known_hosts") or default_known_hosts()))
    for host in [by_name[name] for name in names] or hosts:
        if not host.keys and not own_key().exists():
            public = make_key(own_key())
            tell(f"made the key {own_key()}; add to ~{host.user}/.ssh/authorized_keys on the hosts:\n{public}")
        learn_key(host, known_hosts, accept_key, tell)
        asyncio.run(_mark(host, known_hosts, packages, ask, tell))


def learn_key(host: SshHost, known_hosts: Path, accept: Ask, tell: Callable[[str], None]) -> None:
    """Note the host's key on first use, if ``accept`` agrees. Raises BackendError otherwise, or on any trouble."""
    try:
        hang_up(dial(host, known_hosts))
    except UnknownHostKey as unknown:
        question = f"{host.label} shows the host key {fingerprint(unknown.key)}; is that its key?"
        if not accept(question):
            raise BackendError(f"{host.label}: its host key was not accepted; nothing was changed") from None
        try:
            known_hosts.parent.mkdir(parents=True, exist_ok=True)
            before = known_hosts.read_bytes() if known_hosts.exists() else b""
            with known_hosts.open("a", encoding="utf-8") as file:
                file.write("" if before.endswith(b"\n") or not before else "\n")
                file.write(f"{host.known_as} {unknown.key.get_name()} {unknown.key.get_base64()}\n")
        except OSError as error:
            raise StormproofError(f"can't write {known_hosts}: {error.strerror}") from None
        tell(f"{host.label}: noted {fingerprint(unknown.key)} in {known_hosts}")
        hang_up(dial(host, known_hosts))


async def _mark(host: SshHost, known_hosts: Path, further: Sequence[str], ask: Ask,
                tell: Callable[[str], None]) -> None:
    async def connect() -> ShellChannel:
        return await open_root_shell(host, known_hosts, (), lambda process: None)

    shell = Shell(host.label, connect)
    try:
        facts = parse_facts(_demand(host, await shell.run(FACTS_SCRIPT, 2 * CONNECT_LIMIT)))
        packages = missing_packages(facts)
        if packages:
            command = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
            if not ask(f"{host.label} lacks what a node needs ({lacks(facts)}). Install {' '.join(packages)} there?"):
                raise BackendError(f"{host.label} lacks what a node needs: {lacks(facts)}")
            _demand(host, await shell.run(f"export DEBIAN_FRONTEND=noninteractive; {command}", INSTALL_LIMIT))
            facts = parse_facts(_demand(host, await shell.run(FACTS_SCRIPT, 2 * CONNECT_LIMIT)))
            if why := lacks(facts):
                raise BackendError(f"{host.label} still lacks what a node needs: {why}")
        await _install(shell, host, further, ask, tell)
        if facts.marked:
            tell(f"{host.label} is prepared: it has {MARKER}")
            return
        if not ask(f"{host.label} calls itself {facts.hostname!r}. Tests will cut its network, set its clock, cut its "
                   "power. May it be broken, and everything on it be lost?"):
            raise BackendError(f"{host.label} was not prepared: nothing was changed")
        who = f"{getpass.getuser()} on {socket.gethostname()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        note = f"Stormproof may break this machine, says {who}; remove this file to forbid it"
        folder = Path(MARKER).parent
        _demand(host, await shell.run(f"mkdir -p {folder} && echo {shlex.quote(note)} > {MARKER}", CONNECT_LIMIT))
        tell(f"{host.label} is prepared: {MARKER} says that it may be broken")
    finally:
        await shell.close()


async def _install(shell: Shell, host: SshHost, packages: Sequence[str], ask: Ask, tell: Callable[[str], None]) -> None:
    """Install those of a system's packages that a host lacks; the services that they start are disabled for good."""
    if not packages:
        return
    there = _demand(host, await shell.run(installed_script(packages), CONNECT_LIMIT)).splitlines()
    missing = [package for package in sorted(packages) if f"installed {package}" not in there]
    if not missing:
        tell(f"{host.label} has {' '.join(sorted(packages))}")
        return
    names = " ".join(missing)
    if not ask(f"{host.label} lacks {names}. Install that there, and disable the services that come with it?"):
        raise BackendError(f"{host.label} lacks {names}; run there as root: apt-get install --no-install-recommends "
                           f"{names}")
    _demand(host, await shell.run(_INSTALL.format(names=names), INSTALL_LIMIT))
    tell(f"{host.label}: installed {names}")


_INSTALL = r"""
export DEBIAN_FRONTEND=noninteractive
apt-get update && apt-get install -y --no-install-recommends {names} || exit
if [ -d /run/systemd/system ]; then
  dpkg-query --listfiles {names} | sed -n 's#^\(/usr\)\?/lib/systemd/system/\([^/@]*\.service\)$#\2#p' | sort -u |
    xargs -r systemctl disable --quiet --now
fi
"""


def _demand(host: SshHost, output: Output) -> str:
    if output.status:
        raise BackendError(f"{host.label}: {' '.join(output.text.split())[-300:]}")
    return output.text
