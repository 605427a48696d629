"""What a run has on hosts that outlive it, noted in its folder before anything is done to them, and its removal."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends import network, process
from harness.backends.shell import Channel, Shell
from harness.backends.ssh import clients
from harness.backends.ssh.clients import ClientAddresses
from harness.backends.ssh.connection import ShellProcess, open_root_shell
from harness.backends.ssh.facts import MARKER, STATE
from harness.backends.ssh.hosts import Host
from harness.errors import BackendError, HistoryError
from harness.store import REMOTE_FILE, write_json

CLEAN_LIMIT = 20.0


@dataclass(frozen=True)
class Remote:
    """How to reach a run's nodes and what to remove there and here; no secrets."""

    run: str
    known_hosts: str
    nodes: Mapping[str, Host]
    clients: ClientAddresses | None = None

    def write(self, run_dir: Path) -> None:
        """Note it in the run's folder. Raises StormproofError when that can't be written."""
        data: dict[str, Any] = {
            "run": self.run,
            "known_hosts": self.known_hosts,
            "nodes": {node: host.to_json() for node, host in self.nodes.items()},
            "clients": self.clients.to_json() if self.clients else None,
        }
        write_json(run_dir / REMOTE_FILE, data)

    @classmethod
    def read(cls, run_dir: Path) -> Remote | None:
        """What is noted in a run's folder, None when nothing of it is left anywhere.

        Raises:
            HistoryError: it can't be read.
        """
        path = run_dir / REMOTE_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            nodes = {node: Host.from_json(host) for node, host in data["nodes"].items()}
            ours = data["clients"]
            client_addresses = ours and ClientAddresses(ours["link"], tuple(ours["addresses"]), ours["length"])
            return cls(data["run"], data["known_hosts"], nodes, client_addresses)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HistoryError(f"can't read {path}: {error}") from None

    def node_dir(self, node: str) -> str:
        """The node's folder on its host."""
        return f"{STATE}/runs/{self.run}/{node}"


def clean_script(remote: Remote, node: str) -> str:
    """End the node's broker, let all links pass, remove the run's folder; prints what there was.

    Harmless where nothing is left. Without the marker nothing is touched: the host is no longer ours to clean.
    """
    folder = remote.node_dir(node)
    pid_file = f"{folder}/broker.pid"
    return f"""
[ -f {MARKER} ] || {{ echo "it has no {MARKER} any more"; exit 1; }}
nft list table {network.TABLE} >/dev/null 2>&1 && echo "network"
{network.HEAL_SCRIPT}
if [ -d {shlex.quote(folder)} ]; then
  ( {process.kill_script(pid_file)} ) || exit 1
  rm -rf {shlex.quote(folder)} && echo "folder {folder}" || exit 1
  rmdir {STATE}/runs/{shlex.quote(remote.run)} 2>/dev/null || :
fi
"""


def clean(run_dir: Path) -> list[str]:
    """Remove what a dead run left on its hosts and its client addresses here; a line for each thing done.

    A host that can't be reached or cleaned keeps the note in the run's folder, so that it can be tried again. Blocks.
    """
    remote = Remote.read(run_dir)
    if remote is None:
        return []
    lines, failed = asyncio.run(_clean_nodes(remote))
    if remote.clients is not None:
        lines += [f"removed address {address} from {remote.clients.link}" for address in clients.remove(remote.clients)]
    if not failed:
        (run_dir / REMOTE_FILE).unlink(missing_ok=True)
    return [f"{remote.run}: {line}" for line in [*lines, *failed]]


async def _clean_nodes(remote: Remote) -> tuple[list[str], list[str]]:
    """(what was done, what could not be), all nodes at once."""
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


async def _clean_node(remote: Remote, node: str) -> Sequence[str]:
    host = remote.nodes[node]

    async def connect() -> Channel:
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
    """A shell that was closed while nothing ran in it ends by itself."""
