"""A run's state on hosts that outlive it, noted in its folder before the hosts are changed, and its removal."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends import foreign, netem, network, packets, process
from harness.backends.clock_machines import FORGET_SHARED
from harness.backends.shell import Shell, ShellChannel
from harness.backends.ssh import clients
from harness.backends.ssh.clients import ClientAddresses
from harness.backends.ssh.clock import right_script
from harness.backends.ssh.connection import ShellProcess, dial, hang_up, open_root_shell
from harness.backends.ssh.facts import BUSY, MARKER, STATE
from harness.backends.ssh.hosts import SshHost
from harness.backends.ssh.power import POWER_LIMIT, parse_power, takes_connections
from stormproof.contracts.cluster import MAIN
from stormproof.errors import BackendError, HistoryError
from stormproof.history.read_limits import read_small_text
from stormproof.history.undo import POWER, pending_undos
from stormproof.run_folder import REMOTE_FILE, write_json
from stormproof.timeout_scale import TIMEOUT_FACTOR

CLEAN_LIMIT = 20.0 * TIMEOUT_FACTOR
BOOT_POLL = 0.5

_OWNER = f"owner=; {{ read -r owner < {BUSY}; }} 2>/dev/null"
"""Shell: sets ``owner`` to the run that holds the host, or to nothing."""


@dataclass(frozen=True)
class Remote:
    """The way to reach a run's nodes, and the objects to remove there and here; no secrets."""

    run: str
    known_hosts: str
    nodes: Mapping[str, SshHost]
    clients: ClientAddresses | None = None
    power: str = ""

    def write(self, run_dir: Path) -> None:
        """Write the note in the run's folder. Raises StormproofError when that fails."""
        data: dict[str, Any] = {
            "run": self.run,
            "known_hosts": self.known_hosts,
            "nodes": {node: host.to_json() for node, host in self.nodes.items()},
            "clients": self.clients.to_json() if self.clients else None,
            "power": self.power,
        }
        write_json(run_dir / REMOTE_FILE, data)

    @classmethod
    def read(cls, run_dir: Path) -> Remote | None:
        """Return the note in a run's folder, None when the run has left nothing anywhere.

        Raises:
            HistoryError: it cannot be read.
        """
        path = run_dir / REMOTE_FILE
        try:
            data = json.loads(read_small_text(path))
            nodes = {node: SshHost.from_json(host) for node, host in data["nodes"].items()}
            for name in (data["run"], *nodes):
                if Path(name).name != name or name == "..":
                    raise ValueError(f"{name!r} is not a folder name")
            ours = data["clients"]
            client_addresses = ours and ClientAddresses(ours["link"], tuple(ours["addresses"]), ours["length"])
            return cls(data["run"], data["known_hosts"], nodes, client_addresses, data["power"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HistoryError(f"can't read {path}: {error}") from None

    def node_dir(self, node: str) -> str:
        """Return the node's folder on its host."""
        return f"{STATE}/runs/{self.run}/{node}"


def take_script(remote: Remote, node: str) -> str:
    """Take the host for this run, and create the node's folder; prints the owner when another run holds the host."""
    run = shlex.quote(remote.run)
    note = shlex.quote(f"{BUSY}.{remote.run}")
    # A link appears with its content or not at all; a power loss may still leave an empty file, which names no owner.
    return f"""
mkdir -p {STATE} || exit 1
echo {run} > {note} || {{ rm -f {note}; exit 1; }}
[ -e {BUSY} ] && [ ! -s {BUSY} ] && rm -f {BUSY}
ln {note} {BUSY} 2>/dev/null
rm -f {note}
{_OWNER}
[ "$owner" = {run} ] || {{ echo "it is in use by run $owner; when that has ended: stormproof heal"; exit 1; }}
mkdir -p {shlex.quote(remote.node_dir(node))} {STATE}/code
"""


def clean_script(remote: Remote, node: str) -> str:
    """Restore all links, set the clock right, end all programs, remove the run's folder.

    Prints what was undone. A host that another run has taken is left to that run.

    Harmless where nothing is left. Nothing is touched without the marker, because the harness no longer has the right
    to.
    """
    folder = remote.node_dir(node)
    run = shlex.quote(remote.run)
    return f"""
[ -f {MARKER} ] || {{ echo "it has no {MARKER} any more"; exit 1; }}
{_OWNER}
[ -z "$owner" ] || [ "$owner" = {run} ] || exit 0
nft list table {network.TABLE} >/dev/null 2>&1 && echo "network"
{network.HEAL_SCRIPT}
[ $? = 0 ] || exit 1
{netem.HEAL}
{packets.HEAL}
{right_script()}
{FORGET_SHARED}
if [ -d {shlex.quote(folder)} ]; then
  {foreign.resume_left_script(folder)}
  ( {process.kill_all_script(folder, MAIN)} ) || exit 1
  while umount -l {shlex.quote(f"{folder}/data")} 2>/dev/null; do :; done
  rm -rf {shlex.quote(folder)} && echo {shlex.quote(f"folder {folder}")} || exit 1
fi
rmdir {STATE}/runs/{run} 2>/dev/null || :  # also of an earlier attempt that was cut off behind the line above
{_OWNER}
[ -n "$owner" ] && [ "$owner" != {run} ] || rm -f {BUSY}
"""


def clean(run_dir: Path) -> list[str]:
    """Remove a dead run's remains on its hosts and its client addresses here; returns a line for each action.

    If a host cannot be reached or cleaned, the note in the run's folder is kept, so that cleaning can be tried again.
    Blocks.
    """
    remote = Remote.read(run_dir)
    if remote is None:
        return []
    lines = _give_power(run_dir, remote)
    done, failed = asyncio.run(_clean_nodes(remote))
    lines += done
    if remote.clients is not None:
        lines += [f"removed address {address} from {remote.clients.link}" for address in clients.remove(remote.clients)]
    if not failed:
        (run_dir / REMOTE_FILE).unlink(missing_ok=True)
    return [f"{remote.run}: {line}" for line in [*lines, *failed]]


def _give_power(run_dir: Path, remote: Remote) -> list[str]:
    """Switch on the machines that the run switched off, and wait for each; returns a line for each machine."""
    power = parse_power(remote.power)
    if power is None:
        return []
    off = {node for undo in pending_undos(run_dir) if undo.undo == POWER for node in undo.nodes}
    lines = []
    for node in sorted(off & remote.nodes.keys()):
        host = remote.nodes[node]
        if takes_connections(host):
            continue
        try:
            power.switch(host.name, on=True)
            await_host(host, Path(remote.known_hosts))
            lines.append(f"{host.label}: has power again")
        except BackendError as error:
            lines.append(f"{host.label}: has no power: {error}")
    return lines


async def _clean_nodes(remote: Remote) -> tuple[list[str], list[str]]:
    """Clean all nodes at once; returns (lines of actions, lines of failures)."""
    results = await asyncio.gather(*(_clean_node(remote, node) for node in remote.nodes), return_exceptions=True)
    done, failed = [], []
    for node, result in zip(remote.nodes, results, strict=True):
        if isinstance(result, BackendError):
            failed.append(f"{node} is not healed: {result}; run `stormproof heal` again")
        elif isinstance(result, BaseException):
            raise result
        else:
            done += [f"{remote.nodes[node].label}: removed {what}" for what in result]
    return done, failed


def await_host(host: SshHost, known_hosts: Path) -> None:
    """Wait until a booting host accepts a log-in. Blocks. Raises BackendError when ``POWER_LIMIT`` is exceeded."""
    deadline = time.monotonic() + POWER_LIMIT
    while True:
        try:
            return hang_up(dial(host, known_hosts))
        except BackendError as error:
            if time.monotonic() > deadline:
                raise BackendError(f"{host.label} did not come back within {POWER_LIMIT:g} s: {error}") from None
            time.sleep(BOOT_POLL)


async def _clean_node(remote: Remote, node: str) -> Sequence[str]:
    host = remote.nodes[node]

    async def connect() -> ShellChannel:
        return await open_root_shell(host, Path(remote.known_hosts), (), _forget)

    shell = Shell(host.label, connect)
    try:
        output = await shell.run(clean_script(remote, node), CLEAN_LIMIT)
    finally:
        await shell.close()
    if output.status:
        raise BackendError(f"{host.label}: {' '.join(output.text.split())}")
    return output.text.splitlines()


def _forget(process: ShellProcess) -> None:
    """Ignore a discarded shell: one that is closed while idle ends by itself."""
