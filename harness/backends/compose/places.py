"""Client places: idle containers on all of the project's networks.

Clients run in the network of such a container. They have an address there, resolve the names that Docker's resolver
knows, and are on one side of a partition. A place's image contains one static program of some hundred bytes, which does
nothing: neither a registry nor a shell is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import platform
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import docker
from docker.errors import ImageNotFound

from stormproof.errors import BackendError

T = TypeVar("T")

IMAGE = "stormproof-place:1"
_CODE = {
    "x86_64": (62, bytes.fromhex("b8220000000f05ebf7")),  # mov eax, 34 (pause); syscall; jmp back
    "aarch64": (183, struct.pack("<7I", 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800928, 0xD4000001,
                                 0x17FFFFFA)),  # ppoll(0, 0, 0, 0), for ever
}  # fmt: skip
"""Machine -> its number in ELF headers, and the code of a program that waits for ever."""
_BASE = 0x400000
_GET_LINK, _REQUEST_DUMP, _DONE, _IFLA_LINK = 18, 0x301, 3, 5
CLONE_FS, CLONE_NEWNS, CLONE_NEWNET = 0x200, 0x20000, 0x40000000
_MNT_DETACH = 2
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_here = threading.local()


def waiting_program(machine: str) -> bytes:
    """Return a static ELF program that waits for ever.

    Raises:
        BackendError: no such program is known for this kind of machine.
    """
    if machine not in _CODE:
        raise BackendError(f"client places can't be made on {machine}; known: {', '.join(_CODE)}")
    number, code = _CODE[machine]
    size = 64 + 56 + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 2, number, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000) + code


def ensure_place_image(client: docker.DockerClient) -> None:
    """Import the image of client places, unless it is there. Blocks."""
    try:
        client.images.get(IMAGE)
        return
    except ImageNotFound:
        pass
    program = waiting_program(platform.machine())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("wait")
        entry.mode, entry.size = 0o755, len(program)
        tar.addfile(entry, io.BytesIO(program))
    name, _, tag = IMAGE.partition(":")
    client.api.import_image_from_data(archive.getvalue(), repository=name, tag=tag, changes=['CMD ["/wait"]'])


def start_place(client: docker.DockerClient, name: str, hostname: str, networks: Sequence[str],
                labels: Mapping[str, str]) -> Mapping[str, Any]:  # fmt: skip
    """Start the container of a place on these networks, and return Docker's description of it. Blocks."""
    api = client.api
    config = api.create_host_config(cap_drop=["ALL"], security_opt=["no-new-privileges"], network_mode=networks[0])
    made = api.create_container(IMAGE, name=name, labels=dict(labels), hostname=f"{hostname}-clients",
                                host_config=config)
    for network in networks[1:]:
        api.connect_container_to_network(made["Id"], network)
    api.start(made["Id"])
    found: Mapping[str, Any] = api.inspect_container(made["Id"])
    return found


class Place:
    """A client place that runs: ``pid`` is its process, ``resolver`` and ``hosts`` its files for names on this machine.
    """

    def __init__(self, pid: int, resolver: str, hosts: str) -> None:
        self.pid, self._files = pid, {"/etc/resolv.conf": resolver, "/etc/hosts": hosts}

    def command(self) -> list[str]:
        """Return the words that start a program in the place's network, with the place's names."""
        mounts = " && ".join(f'mount --bind "${i}" {path}' for i, path in enumerate(self._files, 1))
        script = f'{mounts} && shift {len(self._files)} && exec "$@"'
        own_mounts = ["unshare", "--mount", "--propagation", "private"]
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *own_mounts, "sh", "-c", script, "sh",
                *self._files.values()]  # fmt: skip

    def enter(self) -> None:
        """Move this thread, and the threads that it starts from now on, into the place's network, with its names.

        The thread must not be the main one: it never comes back.

        Raises:
            OSError: the kernel refused.
        """
        if getattr(_here, "place", None) == self.pid:
            return
        assert threading.current_thread() is not threading.main_thread()
        libc = ctypes.CDLL(None, use_errno=True)
        network = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        try:
            _demand(libc.setns(network, CLONE_NEWNET))
        finally:
            os.close(network)
        entered = getattr(_here, "place", None) is not None
        if not entered:
            _demand(libc.unshare(CLONE_FS))
            _demand(libc.unshare(CLONE_NEWNS))
            _demand(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        for path, source in self._files.items():
            if entered:
                _demand(libc.umount2(str(Path(path).resolve()).encode(), _MNT_DETACH))
            _demand(libc.mount(source.encode(), str(Path(path).resolve()).encode(), None, _MS_BIND, None))
        _here.place = self.pid


def _demand(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def in_network(pid: int, work: Callable[[], T], seconds: float) -> T | None:
    """Return the result of ``work``, called by a thread in the network of a container's process; None if the container
    has ended, or ``work`` takes longer than ``seconds``."""
    found: list[T] = []

    def run() -> None:
        try:
            handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        except OSError:
            return
        try:
            entered = ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET) == 0
        finally:
            os.close(handle)
        if entered:
            with contextlib.suppress(OSError):  # the network has gone meanwhile
                found.append(work())

    thread = threading.Thread(target=run, name="stormproof-network", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def peers() -> tuple[int, ...]:
    """Return the numbers of the interfaces at the other ends of those in this thread's network: IFLA_LINK in a dump by
    netlink, since sysfs shows the network of another process (Linux, rtnetlink(7))."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(2.0)
        netlink.sendto(struct.pack("=IHHII", 17, _GET_LINK, _REQUEST_DUMP, 1, 0) + bytes(16), (0, 0))
        found: list[int] = []
        while True:
            data, place = netlink.recv(1 << 18), 0
            while place < len(data):
                length, kind = struct.unpack_from("=IH", data, place)
                if kind == _DONE:
                    return tuple(found)
                attribute, end = place + 32, place + length
                while attribute + 4 <= end:
                    size, name = struct.unpack_from("=HH", data, attribute)
                    if name == _IFLA_LINK:
                        found.append(struct.unpack_from("=I", data, attribute + 4)[0])
                    attribute += max(4, (size + 3) & ~3)
                place += (length + 3) & ~3
