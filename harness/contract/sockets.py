"""The TCP connections of this process, as the kernel lists them (proc(5), /proc/net/tcp)."""

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
    """Return the established connections."""
    ours = set(_own_inodes())
    return {each for name in ("tcp", "tcp6") for each in _listed(Path("/proc/self/net") / name) if each.inode in ours}


def _own_inodes() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
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
