"""Owners of objects that may outlive their run, and proofs of an owner's death.

Two facts prove it. The first is a lock file that is still the same file (device and inode) and that no process holds:
the kernel keeps a flock(2) exactly as long as a process lives that has it. If that file is not visible, process ids
with their start times prove it, in the same boot of the same machine and in the same pid namespace. A missing file
proves nothing: it may exist in another mount namespace, or have been moved.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = Path("/etc/machine-id")
_ENDED = frozenset("ZXx")


@dataclass(frozen=True)
class OwnerState:
    """``dead`` if the death is proven; otherwise ``why`` it is not, empty for an owner observed alive."""

    dead: bool
    why: str = ""


DEAD = OwnerState(True)
ALIVE = OwnerState(False)


@dataclass(frozen=True)
class Owner:
    """The owner of an object.

    ``machine`` is the host's name and its machine id; ``boot`` the kernel's boot id; ``namespace`` the pid namespace of
    the pids in ``processes``, each with its start time (field 22 of ``/proc/PID/stat``): the owner lives if one of them
    lives. ``lock`` is the device and inode of a file that is locked for as long as the owner lives.
    """

    uid: int
    machine: str
    boot: str
    namespace: str
    processes: tuple[tuple[int, str], ...] = ()
    lock: str = ""

    def to_json(self) -> dict[str, str]:
        """Return plain texts, which also serve as labels."""
        return {
            "uid": str(self.uid), "machine": self.machine, "boot": self.boot, "namespace": self.namespace,
            "processes": " ".join(f"{pid}:{born}" for pid, born in self.processes), "lock": self.lock,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Owner | None:
        """Return the owner that ``to_json`` wrote; None for anything else."""
        try:
            uid, machine, boot, namespace, processes, lock = (str(data[name]) for name in _NAMES)
            pairs = [entry.partition(":") for entry in processes.split()]
            return cls(int(uid), machine, boot, namespace, tuple((int(pid), born) for pid, _, born in pairs), lock)
        except (KeyError, ValueError, TypeError):
            return None

    def fate(self, lock: Path | None, besides: Collection[int] = ()) -> OwnerState:
        """Return whether the owner lives; ``lock`` is the expected path of its lock file, ``besides`` are pids to
        ignore.
        """
        held = is_held(lock, self.lock) if lock is not None else None
        comparable = self.boot == this_boot() and self.namespace == this_namespace()
        running = comparable and any(pid not in besides and born_of(pid) == born for pid, born in self.processes)
        if held or (held is None and running):
            return ALIVE
        if self.uid != os.getuid():
            return OwnerState(False, f"it is another user's (uid {self.uid})")
        if held is False:
            return DEAD
        if self.boot != this_boot():
            same = self.machine == this_machine() and not self.machine.endswith(" ")
            return DEAD if same else OwnerState(False, f"another machine made it, or this one before a restart "
                                                 f"({self.machine.strip() or 'of unknown name'})")
        if self.namespace != this_namespace():
            return OwnerState(False, "its process is in another pid namespace")
        return DEAD if self.processes else OwnerState(False, "the lock of its process is not to be seen")


_NAMES = tuple(Owner(0, "", "", "").to_json())


@dataclass(frozen=True)
class Leftover:
    """An object on this machine that a run created, or a process for several runs (then ``run`` is empty).

    ``what`` is its full name; ``run_dir`` is the former place of the run's folder; ``lock`` is the expected path of its
    owner's lock file; ``remove`` removes the object and returns whether it still existed; ``is_gone`` returns whether
    its owner has removed it in the meantime, or is about to.
    """

    what: str
    run: str
    run_dir: Path | None
    owner: Owner | None
    lock: Path | None
    remove: Callable[[], bool]
    is_gone: Callable[[], bool] = lambda: False


def this_process(lock: Path | None = None) -> Owner:
    """Return this process as an owner, with the lock file that it holds."""
    return Owner(os.getuid(), this_machine(), this_boot(), this_namespace(), ((os.getpid(), born_of(os.getpid())),),
                 lock_identity(lock) if lock else "")


def this_machine() -> str:
    """Return the host's name and machine id; the id is empty if there is none."""
    try:
        ident = _MACHINE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        ident = ""
    return f"{socket.gethostname()} {ident}"


def this_boot() -> str:
    """Return the kernel's boot id."""
    return _BOOT.read_text(encoding="ascii").strip()


def this_namespace() -> str:
    """Return the pid namespace of this process."""
    return str(Path("/proc/self/ns/pid").readlink())


def born_of(pid: int) -> str:
    """Return the start time of a running process; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0].decode() in _ENDED else fields[19].decode()
    except (OSError, IndexError, ValueError):
        return ""


def lock_identity(path: Path) -> str:
    """Return the device and inode of a file; empty if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def is_held(path: Path, identity: str) -> bool | None:
    """Return whether a process holds the lock file of that identity at ``path``; None if it can't be determined there.
    """
    if not identity:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if f"{found.st_dev}:{found.st_ino}" != identity:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False
