"""The movable virtual address: a manager's requests to its machine, and Linux's implementation (rtnetlink(7),
packet(7)).

The address has a lifetime, which the manager renews with its broker's lease: when the manager is dead or suspended, the
kernel removes it. It is added with the prefix length 32, so that the machine does not use it as a source address.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Protocol

_NEW, _DELETE, _GET = 20, 21, 22
_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE, _DUMP = 0x1, 0x4, 0x100, 0x400, 0x300
_ADDRESS, _LOCAL, _LIFETIMES = 1, 2, 6
_HEADER = struct.Struct("=IHHII")
_MESSAGE = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_PIECE = 1 << 16
_TIMEOUT = 2.0
"""Time limit in seconds for an answer of the kernel."""
_ARP = 0x0806
_EVERYBODY, _NOBODY = b"\xff" * 6, b"\x00" * 6


class AddressError(Exception):
    """The address can't be added, removed or announced; the text is one line."""


class Addresses(Protocol):
    """The virtual address at one machine."""

    def hold(self, seconds: int) -> None:
        """Keep the address for this number of seconds from now, replacing any earlier lifetime; raises AddressError."""

    def announce(self) -> None:
        """Announce on the network that the address is here; raises AddressError."""

    def drop(self) -> None:
        """Remove the address; do nothing if it is not here; raises AddressError."""


class LinuxAddresses:
    """An IPv4 address on the interface that has the node's ``own`` address; needs CAP_NET_ADMIN, and CAP_NET_RAW to
    announce it."""

    def __init__(self, address: str, own: str) -> None:
        self._address, self._own = socket.inet_aton(address), own

    def hold(self, seconds: int) -> None:
        """Add the address, or renew its lifetime."""
        lifetimes = struct.pack("=IIII", seconds, seconds, 0, 0)
        self._change(_NEW, _REPLACE | _CREATE, _attribute(_LIFETIMES, lifetimes))

    def announce(self) -> None:
        """Broadcast an ARP request and a reply for the address: some systems process only one of them (RFC 5227, 3)."""
        name = socket.if_indextoname(self._interface())
        try:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as packets:
                packets.bind((name, _ARP))
                hardware = packets.getsockname()[4]
                for operation, target in ((1, _NOBODY), (2, _EVERYBODY)):
                    packets.send(_EVERYBODY + hardware + struct.pack("!HHHBBH", _ARP, 1, 0x0800, 6, 4, operation)
                                 + hardware + self._address + target + self._address)  # fmt: skip
        except OSError as error:
            raise AddressError(f"ARP on {name}: {error.strerror or error}") from error

    def drop(self) -> None:
        """Remove the address."""
        self._change(_DELETE, 0, b"")

    def _change(self, kind: int, flags: int, more: bytes) -> None:
        body = _MESSAGE.pack(socket.AF_INET, 32, 0, 0, self._interface()) + _attribute(_LOCAL, self._address)
        for _, answer in _asked(kind, flags | _ACKNOWLEDGE, body + _attribute(_ADDRESS, self._address) + more):
            number = -struct.unpack_from("=i", answer)[0]
            if number and not (kind == _DELETE and number == errno.EADDRNOTAVAIL):
                raise AddressError(f"{socket.inet_ntoa(self._address)}: {os.strerror(number)}")

    def _interface(self) -> int:
        """Return the number of the interface that has the node's own address."""
        wanted = socket.inet_aton(self._own)
        for kind, answer in _asked(_GET, _DUMP, _MESSAGE.pack(socket.AF_INET, 0, 0, 0, 0)):
            if kind == _NEW and wanted in _values(answer[_MESSAGE.size :], _LOCAL):
                return int(_MESSAGE.unpack_from(answer)[4])
        raise AddressError(f"no interface has {self._own}, this node's own address")


def _asked(kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kernel's answers to one request: for each its type and the bytes after the header."""
    request = _HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST, 1, 0) + body
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_TIMEOUT)
            kernel.bind((0, 0))
            kernel.send(request)
            while True:
                data = kernel.recv(_PIECE)
                while data:
                    size, found, *_ = _HEADER.unpack_from(data)
                    if found == _DONE:
                        return
                    yield found, data[_HEADER.size : size]
                    if found == _ERROR:
                        return
                    data = data[_aligned(size) :]
    except OSError as error:
        raise AddressError(f"netlink: {error.strerror or error}") from error


def _attribute(kind: int, value: bytes) -> bytes:
    return (_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value).ljust(_aligned(4 + len(value)), b"\0")


def _values(attributes: bytes, wanted: int) -> list[bytes]:
    found = []
    while len(attributes) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == wanted:
            found.append(attributes[_ATTRIBUTE.size : size])
        attributes = attributes[_aligned(max(size, _ATTRIBUTE.size)) :]
    return found


def _aligned(size: int) -> int:
    return (size + 3) & ~3
