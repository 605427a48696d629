"""Nodes that are kept after their run for a person: manual faults, a shell on each node, and their removal.

The run's child process (``harness.run.test_runner``) stays alive, and with it the nodes, its lock and its connections
to them. It listens on a socket in the run's folder. Requests and answers are one JSON object each. After ``shell``, the
socket carries the bytes of a shell on the node. Manual faults are recorded in the run's folder ``by-hand``, since its
own ledger is sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shlex
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.backends.base import ShellBackend
from harness.backends.catalog import BACKENDS
from nemesis.catalog import FAULTS
from nemesis.compose import NemesisClient
from nemesis.families import ANY_KIND, split_aims, supported_families, wanted_kinds
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import Attached
from stormproof.contracts.cluster import Cluster
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import HEAL, INJECT, UNMET, LedgerLine
from stormproof.operation import INFO, Op
from stormproof.run_folder import is_alive
from stormproof.store import Store

SOCKET = "kept.sock"
BY_HAND = "by-hand"

ALWAYS, ON_FAILURE, NEVER = "always", "on-failure", "never"
POLICIES = (ALWAYS, ON_FAILURE, NEVER)

_LINE_LIMIT = 1 << 20
_CHUNK = 1 << 16


def wanted(policy: str, verdict: str) -> bool:
    """Return whether nodes are kept after a run with this verdict (empty: the run broke)."""
    return policy == ALWAYS or (policy == ON_FAILURE and verdict != "valid")


def check_keeping(policy: str, backend: str, *, several: bool) -> None:
    """Raise UsageError if nodes can't be kept."""
    if policy not in POLICIES:
        raise UsageError(f"--keep-nodes={policy}: one of {', '.join(POLICIES)}")
    if policy != NEVER and several:
        raise UsageError("--keep-nodes goes with a single run, not with --repeat or --seeds")
    if policy != NEVER and issubclass(BACKENDS.load(backend), Attached):
        raise UsageError(f"--keep-nodes: attached nodes are left as they were found (backend {backend})")
    if policy != NEVER and BACKENDS.load(backend).in_process:
        raise UsageError(f"--keep-nodes: backend {backend} has no nodes that could be kept")


class KeptNodes:
    """The service of the run's child process for its kept nodes, until an order to remove them."""

    def __init__(self, cluster: Cluster, run_dir: Path) -> None:
        self._cluster = cluster
        self._run_dir = run_dir
        self._folder = run_dir / BY_HAND
        self._clients: dict[str, NemesisClient] = {}
        self._lines: list[LedgerLine] = []
        self._next_id = 0
        self._began = asyncio.get_running_loop().time()
        self._over = asyncio.Event()
        self._busy = asyncio.Lock()

    async def serve(self, listens: Callable[[], None]) -> None:
        """Carry out requests until ``down``, then end all faults that can be healed.

        ``listens`` is called when the socket accepts requests.
        """
        self._folder.mkdir(exist_ok=True)
        with _place(self._run_dir) as path:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(path)
            Path(path).chmod(stat.S_IRUSR | stat.S_IWUSR)
        server = await asyncio.start_unix_server(self._converse, sock=listening, limit=_LINE_LIMIT)
        listens()
        try:
            await self._over.wait()
        finally:
            server.close()
            (self._run_dir / SOCKET).unlink(missing_ok=True)
            for client in self._clients.values():
                with contextlib.suppress(StormproofError):
                    await client.heal_all()
                await client.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            order = json.loads(await reader.readline())
            if order["do"] == "shell":
                await self._shell(order, reader, writer)
            else:
                async with self._busy:
                    await _answer(writer, await self._carry_out(order))
        except (ValueError, KeyError, TypeError) as error:
            await _answer(writer, {"error": f"not understood: {error!r}"})
        except (StormproofError, TimeoutError, OSError) as error:
            await _answer(writer, {"error": str(error) or type(error).__name__})
        finally:
            writer.close()

    async def _carry_out(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["do"] == "fault":
            return {"lines": await self._fault(str(order["name"]), order.get("seed"), dict(order.get("settings", {})))}
        if order["do"] == "heal":
            return {"lines": await self._heal()}
        if order["do"] == "down":
            self._over.set()
            return {"lines": []}
        raise ValueError(order["do"])

    async def _fault(self, name: str, seed: object, settings: dict[str, Any]) -> list[dict[str, Any]]:
        families, aims = split_aims(name)
        lines = []
        for family in families.split(","):
            FAULTS.entry(family)
            test = self._cluster.test
            test = replace(test, nemesis=(family,), options={**test.options, **settings, **aims})
            (fault,) = supported_families(self._cluster.backend, test, self._cluster.topology,
                                          SYSTEMS.load(test.system))  # fmt: skip
            rng = random.Random(str(seed)) if seed is not None else random.SystemRandom()
            kinds = wanted_kinds(test, fault)
            kind = rng.choice(list(fault.kinds) if ANY_KIND in kinds else list(kinds))
            if family not in self._clients:
                folder = self._folder / family
                folder.mkdir(exist_ok=True)
                self._clients[family] = NemesisClient(test, self._cluster, folder, self._clock, [fault],
                                                      on_line=self._lines.append)  # fmt: skip
                await self._clients[family].open()
            elif self._clients[family].active:
                raise UsageError(f"a fault of {family} is in effect; stormproof heal ends it")
            value = {"id": self._next_id, "kind": kind, "seed": rng.getrandbits(31)}
            self._next_id += 1
            with self._on_cluster(settings | aims):
                await self._clients[family].invoke(Op(INFO, f"{family}.{INJECT}", value))
            lines += self._told()
        return lines

    async def _heal(self) -> list[dict[str, Any]]:
        for family, client in self._clients.items():
            for ident in reversed(client.active):
                await client.invoke(Op(INFO, f"{family}.{HEAL}", {"id": ident, "kind": ""}))
        return self._told()

    @contextmanager
    def _on_cluster(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Gather facts about the cluster with these settings in addition to the test's."""
        before = self._cluster.test
        self._cluster.test = replace(before, options={**before.options, **settings})
        try:
            yield
        finally:
            self._cluster.test = before

    def _told(self) -> list[dict[str, Any]]:
        lines, self._lines[:] = [json.loads(line.to_json()) for line in self._lines], []
        return lines

    def _clock(self) -> int:
        return round((asyncio.get_running_loop().time() - self._began) * 1e9)

    async def _shell(self, order: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
                     ) -> None:  # fmt: skip
        backend, node = self._cluster.backend, str(order["node"])
        if not isinstance(backend, ShellBackend) or node not in self._cluster.topology.machines:
            raise UsageError(f"unknown node {node!r} (known: {', '.join(self._cluster.topology.machines)})")
        channel = await backend.open_shell(node)
        try:
            if order.get("terminal"):
                rows, columns = (int(order[side]) for side in ("rows", "columns"))
                spawn = ["/bin/sh", "-c", f"stty rows {rows} columns {columns} 2>/dev/null; exec /bin/sh -i"]
                code = f"import pty; pty.spawn({spawn!r})"
                await channel.write(f"exec env PS1='{node}# ' TERM={shlex.quote(str(order.get('term', 'dumb')))} "
                                    f"{shlex.quote(backend.python(node))} -c {shlex.quote(code)}\n".encode())
            await _answer(writer, {"lines": []})
            there = asyncio.create_task(self._pump(channel, writer))
            here = asyncio.create_task(self._feed(reader, channel))
            await asyncio.wait({there} if not order.get("terminal") else {there, here},
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            for task in (there, here):
                task.cancel()
        finally:
            await channel.destroy()

    async def _pump(self, channel: Any, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await channel.read():
                writer.write(data)
                await writer.drain()

    async def _feed(self, reader: asyncio.StreamReader, channel: Any) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await channel.write(data)
            await channel.write(b"\nexit\n")  # the end of the piped input


async def _answer(writer: asyncio.StreamWriter, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


@contextmanager
def _place(run_dir: Path) -> Iterator[str]:
    """Yield a path to the socket that is short enough for any folder name (unix(7): 108 bytes)."""
    fd = os.open(run_dir, os.O_PATH)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def is_kept(run_dir: Path) -> bool:
    """Return whether a run's nodes are kept."""
    return (run_dir / SOCKET).exists() and is_alive(run_dir)


def kept_runs(store: Path) -> list[Path]:
    """Return the runs of a store whose nodes are kept, the latest last."""
    return [run_dir for run_dir in Store(store).runs() if is_kept(run_dir)]


def find_kept(store: Path, name: str = "") -> Path:
    """Return the run of that name whose nodes are kept, or the latest.

    Raises:
        UsageError: there is none.
    """
    kept = kept_runs(store)
    if name:
        run_dir = Store(store).resolve(name)
        if run_dir not in kept:
            raise UsageError(f"the nodes of {run_dir.name} are not kept; stormproof test --keep-nodes keeps some")
        return run_dir
    if not kept:
        raise UsageError(f"no nodes are kept in {store}; stormproof test --keep-nodes keeps some")
    return kept[-1]


def ask(run_dir: Path, order: Mapping[str, Any], sock: socket.socket | None = None) -> dict[str, Any]:
    """Send a request to the child process that keeps a run's nodes, and return its answer.

    Raises:
        StormproofError: it does not listen, or answers with an error.
    """
    with contextlib.ExitStack() as stack:
        if sock is None:
            sock = stack.enter_context(connect(run_dir))
        sock.sendall(json.dumps(order).encode() + b"\n")
        answer = json.loads(read_line(sock) or b'{"error": "it ended"}')
    if "error" in answer:
        raise StormproofError(f"{run_dir.name}: {answer['error']}")
    return dict(answer)


def connect(run_dir: Path) -> socket.socket:
    """Return a connection to the child process that keeps a run's nodes. Raises StormproofError when none listens."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _place(run_dir) as path:
            sock.connect(path)
    except OSError as error:
        sock.close()
        raise StormproofError(f"no process keeps the nodes of {run_dir.name}: {error.strerror}; "
                              "run: stormproof heal") from None
    return sock


def read_line(sock: socket.socket) -> bytes:
    """Read a line byte by byte, so that the bytes after it are left in the socket."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            break
        line += byte
    return line


def sentences(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return ledger lines as sentences for people, with the evidence."""
    found = []
    for line in lines:
        targets = ", ".join(line["targets"])
        phase = {INJECT: "injected", HEAL: "healed"}[line["phase"]]
        proof = "proven" if line["proven"] else "not proven" if line["phase"] == HEAL else "not yet proven"
        if line["proven"] and (unmet := line["evidence"].get(UNMET)):
            proof = f"does not count, since {unmet}"
        state = f": {line['error']}" if line["error"] else f" ({proof}: {json.dumps(line['evidence'])})"
        found.append(f"{line['fault']} {line['kind']}{f' {targets}' if targets else ''} {phase}{state}")
    return found
