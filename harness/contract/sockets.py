"""The TCP connections of clients, as the kernel lists them (proc(5), /proc/PID/net/tcp): of this process, and of the
programs that it has started, in whatever network each of them is."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ESTABLISHED = "01"


@dataclass(frozen=True)
class Connected:
    """One connection, from a local address to a remote one. The inode distinguishes it from others."""

    inode: str
    local: str
    remote: str
    port: int


def connections() -> set[Connected]:
    """Return the established connections of this process and of its descendants."""
    return {each for pid in _family(os.getpid()) for each in _connections_of(Path(f"/proc/{pid}"))}


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # the thread, or the process, has ended
            continue
        for child in map(int, found):
            yield from _family(child)


def _connections_of(process: Path) -> Iterator[Connected]:
    ours = set(_inodes(process))
    networks: dict[str, Path] = {}  # threads may be in different networks
    for task in process.glob("task/*"):
        try:
            networks.setdefault(str((task / "ns/net").readlink()), task)
        except OSError:
            continue
    for task in networks.values():
        for name in ("tcp", "tcp6"):
            yield from (each for each in _listed(task / "net" / name) if each.inode in ours)


def _inodes(process: Path) -> Iterator[str]:
    try:
        entries = list((process / "fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            target = os.readlink(entry)  # noqa: PTH115  # a socket has no file path
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _listed(path: Path) -> Iterator[Connected]:
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] == _ESTABLISHED:
            remote, port = fields[2].split(":")
            yield Connected(fields[9], _address(fields[1].split(":")[0]), _address(remote), int(port, 16))


def _address(text: str) -> str:
    words = struct.unpack(f">{len(text) // 8}I", bytes.fromhex(text))
    raw = struct.pack(f"={len(words)}I", *words)  # each word has the machine's byte order
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
