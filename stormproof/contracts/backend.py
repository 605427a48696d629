"""Backends: the machines that nodes run on, described by their abilities.

Every backend is a ``Backend``. Its further abilities are the protocols that it fulfils: ``Shells`` or ``Launcher`` to
start programs, ``PacketFaults``, ``PowerControl``, ``Reboots``, ``Clocks``, ``Disks``, ``Files``, ``HasPoints``. A run
does not create the machines of an ``Attached`` backend. ``abilities`` describes in words how each is honoured; a fault
declares those that it needs (``stormproof.contracts.fault``). Times are in seconds; every call has a hard time limit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError
from stormproof.process_owner import Leftover
from stormproof.test import Test

Link = tuple[str, str]
"""(from, to): names of machines or client hosts, one direction; ``n1@NETWORK`` is n1 on an additional network."""

LINKS, PAUSE, KILL, PACKETS, POWER, REBOOT, CLOCKS, DISKS, FILES, POINTS = (
    "links", "pause", "kill", "packets", "power", "reboot", "clocks", "disks", "files", "points"
)  # fmt: skip
"""Names of the abilities that faults need; ``packets:loss`` is the ability to inject packet loss only."""

OWN_ROOT, SHARED_ROOT, HOST_ROOT = "own", "shared", "host"
"""The origin of the files that a machine sees: a private root that ends with the run, the root of the harness's
machine, or the root of a host that outlives the run."""

SIGTERM, SIGKILL = "SIGTERM", "SIGKILL"
"""The signals that end a program that is stopped."""
RUNNING, PAUSED, DEAD, DONE = "running", "paused", "dead", "done"
"""States of a program; DONE: it was a job of a helper machine, and has ended by itself with status 0."""


@dataclass(frozen=True)
class LinkConditions:
    """The degradation of a link, short of a cut; the default is a good link.

    ``loss``, ``duplicate``, ``reorder``, ``corrupt`` and ``reset`` are shares of the link's packets, 0 to 1: packets
    that are lost, that arrive twice, that later packets overtake, that have a flipped bit (the receiver's checksum
    discards them), or that are answered by a TCP reset. ``delay`` is added to each packet, in seconds, with a jitter of
    plus or minus ``jitter``. ``rate`` is the link's bandwidth in bytes a second; 0 is unlimited.
    """

    loss: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    reset: float = 0.0
    rate: float = 0.0


DISK_FAULTS = ("full", "write-error", "sync-error", "slow", "lose-unsynced", "torn", "corrupt", "empty")
DISK_DAMAGES = ("bits", "truncate")
"""Faults of chosen files, which occur on request only."""


@dataclass(frozen=True)
class DiskFault:
    """A fault of the disk under a machine's data folder, in force until the disk is set right.

    ``kind`` is one of ``DISK_FAULTS`` or ``DISK_DAMAGES``: ``full`` (writes fail with ENOSPC), ``write-error`` and
    ``sync-error`` (EIO), ``slow`` (each sync takes ``seconds`` longer), ``lose-unsynced`` (data that was not synced is
    lost when a program is killed or the machine loses power), ``torn`` (the same, but a part of the last unsynced write
    survives). Four kinds happen once, when the fault is set, to a machine whose programs are dead: ``corrupt`` (noise
    has replaced a piece of the stored data), ``empty`` (a new disk has replaced the old one), ``bits`` (that many bits
    are flipped, at random places of the files that match the pattern ``files``) and ``truncate`` (one of these files
    has lost its end).
    """

    kind: str
    seconds: float = 0.0
    files: str = ""
    """Shell pattern of the paths below the data folder; ``*`` also matches slashes."""
    bits: int = 0


@dataclass(frozen=True)
class ProcessState:
    """The operating system's view of a program's process.

    ``state`` is ``running``, ``paused`` (stopped by a signal) or ``dead``; ``pid`` is the process id inside the
    machine, None for a dead process; ``born`` distinguishes a process from a later one with the same id.
    """

    state: str
    pid: int | None = None
    born: str = ""


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output (errors included) of a command on a machine."""

    status: int
    output: str


@dataclass(frozen=True)
class Capability:
    """A capability that a machine may lack: ``detail`` describes the finding, ``mend`` the remedy if it is missing."""

    name: str
    available: bool
    detail: str
    mend: str = ""


class Backend(ABC):
    """Machines that can be provisioned, addressed, cut off from each other, and whose programs can be signalled.

    The network is set as a whole: ``set_network`` takes the complete set of links to cut; ``()`` heals all of them. A
    program is one process group with a name; kill, pause and resume act on that group alone.

    ``in_process``: the machines are in this process, under simulated time; the backend is then a ``Launcher``.
    ``abilities`` maps each ability (``ability:kind`` if not all of its kinds are supported) to a description of how it
    is honoured; a missing ability is refused. ``lateness`` is the number of seconds by which an event on a machine may
    be later than the machine's timers indicate; None if the machine's clock can't be compared with the harness's.
    ``root_folder`` names the origin of the files that the machines see. ``by_default``: the backend may be chosen if
    the user names none. ``also_type`` is the text that a command line needs in addition to ``--backend``.
    """

    name: ClassVar[str] = ""
    in_process: ClassVar[bool] = False
    abilities: ClassVar[Mapping[str, str]] = {}
    lateness: ClassVar[float | None] = None
    root_folder: ClassVar[str] = OWN_ROOT
    by_default: ClassVar[bool] = False
    also_type: ClassVar[str] = ""
    options: ClassVar[tuple[Option, ...]] = ()

    @staticmethod
    def launch_prefix() -> list[str]:
        """Return the words that precede the command of the process that provisions.

        Raises:
            BackendError: this user may not create nodes on this machine; the message says what would help.
        """
        return []

    @staticmethod
    def requirements() -> Sequence[Capability]:
        """Return the requirements for using the backend on this machine, each with its availability; takes tenths of a
        second."""
        return ()

    @staticmethod
    def lacks() -> Mapping[str, str]:
        """Return the abilities that are unavailable on this machine, each with the reason and the remedy."""
        return {}

    @staticmethod
    def cannot(test: Test, topology: Topology) -> str:
        """Return why such a test is impossible on this backend, on any machines; empty if it is possible."""
        return ""

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings in the form in which they are stored: with absolute paths."""
        return dict(given)

    @staticmethod
    def leftovers() -> Sequence[Leftover]:
        """Return what runs, live or dead, have created on this machine and not removed yet, except folders."""
        return ()

    @staticmethod
    def obstacle() -> str | None:
        """Return why it is unknown on this machine whether a dead run has left anything; None if it is known."""
        return None

    @staticmethod
    def check_settings(options: Mapping[str, Any]) -> None:
        """Raise UsageError if a value of the backend's settings makes no sense."""

    @abstractmethod
    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create machines and client hosts and connect them."""

    @abstractmethod
    def address(self, name: str) -> str:
        """Return the IP address of a machine, or of a client host (clients bind their sockets to it); ``n1@NETWORK`` is
        the address of n1 on an additional network."""

    @abstractmethod
    def node_dir(self, node: str) -> str:
        """The machine's private folder for programs, data and logs, as seen on the machine."""

    def data_dir(self, node: str) -> str:
        """Return the subfolder on the machine's private disk, which disk faults and power cuts affect."""
        return f"{self.node_dir(node)}/data"

    def shared_dir(self, name: str) -> str:
        """Return the path of a folder that all machines share (``Topology.shared``), as each machine sees it.

        Raises:
            BackendError: no shared folder has that name.
        """
        raise BackendError(f"these machines have no folder {name!r} in common")

    @abstractmethod
    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on a machine, atomically, creating its folder."""

    @abstractmethod
    async def download(self, node: str, path: str) -> bytes:
        """Read a file of a machine; raise BackendError if it does not exist."""

    @abstractmethod
    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """End a program with SIGTERM, then with SIGKILL after ``timeout`` seconds. Return the signal that ended it, or
        an empty text if it was dead before."""

    @abstractmethod
    async def kill(self, node: str, program: str) -> None:
        """End a program with SIGKILL; do nothing if it is dead."""

    @abstractmethod
    async def pause(self, node: str, program: str) -> None:
        """Stop a program's processes with SIGSTOP; raise BackendError if the program is dead."""

    @abstractmethod
    async def resume(self, node: str, program: str) -> None:
        """Resume a program's processes with SIGCONT; raise BackendError if the program is dead."""

    @abstractmethod
    async def process(self, node: str, program: str) -> ProcessState:
        """Return a program's state, read from the operating system."""

    @abstractmethod
    async def set_network(self, cut: frozenset[Link]) -> None:
        """Make exactly these links drop every packet and all others pass; idempotent."""

    @abstractmethod
    async def dropped(self) -> Mapping[Link, int]:
        """Return the number of packets dropped so far on each link that is cut now (evidence of a partition)."""

    @abstractmethod
    async def probe(self, link: Link, timeout: float) -> str:
        """Probe whether a packet from one machine to another arrives and is answered within ``timeout`` seconds.

        Returns:
            ``open`` if it is answered, ``cut`` if it is not, ``unknown`` if neither can be established.
        """

    @abstractmethod
    async def release(self) -> None:
        """Remove everything that ``provision`` created; safe to call twice or after a failed provision."""


@runtime_checkable
class Holding(Protocol):
    """Machines whose programs' memory can be inspected."""

    def holdings(self, node: str) -> Mapping[str, int]:
        """Return the contents of a node's running programs, in memory and in their databases, as a mapping from a
        container's or table's name to its number of items; small ones are left out."""
        ...


@runtime_checkable
class CountsFrames(Protocol):
    """Machines whose network counts what programs send."""

    def sent(self) -> Mapping[Link, tuple[int, int]]:
        """Return the frames (data that a program hands to its kernel at once) and bytes sent so far on each used link.
        """
        ...

    def dialled(self) -> Mapping[Link, int]:
        """Return the number of connection attempts by programs so far, on each link."""
        ...

    def written(self) -> Mapping[str, int]:
        """Return the number of disk writes by the programs of each machine so far."""
        ...


@dataclass(frozen=True)
class Usage:
    """The resource usage of a machine's programs.

    Counted since the measurement of the machine began: ``cpu`` (seconds), ``read`` and ``written`` (bytes from and to
    storage) of its programs, ``received`` and ``sent`` (bytes on the wire) of the machine. Current values: ``memory``
    (resident bytes; memory that processes share counts for each of them), ``disk`` (bytes in the machine's folder, and
    in files elsewhere that its programs had open for writing), ``processes``. ``sampling`` is the CPU seconds that the
    measurement itself takes on the machine. None: the value is unavailable there.
    """

    cpu: float
    memory: int
    disk: int | None
    read: int | None
    written: int | None
    received: int
    sent: int
    processes: int
    sampling: float


@runtime_checkable
class Metered(Protocol):
    """Machines that report the resource usage of their programs."""

    def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        """Yield the machine's usage about every ``interval`` seconds, counted from the first sample, until closed.

        Raises:
            BackendError: usage can't be measured, or can't be measured any longer.
        """
        ...


@runtime_checkable
class Disturbed(Protocol):
    """Machines that are observed, and whose observations are judged by whether a fault is in force."""

    def told_of_faults(self, disturbed: Callable[[], tuple[bool, int]]) -> None:
        """Take a callback that returns whether a fault is in force, and the number of fault steps so far."""
        ...


@runtime_checkable
class Shells(Protocol):
    """Machines with a shell: commands are run and programs are started there."""

    def code_dir(self, node: str) -> str:
        """Return the machine's folder for programs, which may outlive the run and may be shared by several runs."""
        ...

    def python(self, node: str) -> str:
        """Return the Python interpreter (3.11 or newer) that runs on the machine."""
        ...

    async def exec(self, node: str, command: str, timeout: float = 10.0) -> CommandResult:
        """Run a shell command on a machine as its administrator."""
        ...

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Launch a program in the background; append its output to the file ``log`` on the machine.

        Raises:
            BackendError: the program already runs there, or the command does not exist.
        """


@dataclass(frozen=True)
class Credentials:
    """The login of clients; an empty ``login`` means an anonymous one, an empty ``passcode`` means no passcode."""

    login: str = ""
    passcode: str = field(default="", repr=False)


@runtime_checkable
class Attached(Protocol):
    """Machines that already run a system: the harness installs, starts, stops and removes nothing there."""

    def port(self, node: str) -> int:
        """Return the port of a replica that clients connect to; the replica's address is ``Backend.address``."""
        ...

    def credentials(self) -> Credentials:
        """Return the credentials with which clients connect there."""
        ...


@runtime_checkable
class MovableAddresses(Protocol):
    """Machines in this process, whose programs move addresses (``Topology.addresses``) without a command."""

    def give_address(self, node: str, address: str, seconds: float) -> None:
        """Give the machine the address for ``seconds`` from now, unless it is renewed earlier."""

    def take_address(self, node: str, address: str) -> None:
        """Take the address from the machine; do nothing if the machine does not have it."""

    def announce_address(self, node: str, address: str) -> None:
        """Direct all traffic for the address to this machine from now on, as a gratuitous ARP does."""

    def has_address(self, node: str, address: str) -> bool:
        """Return whether the machine has the address."""
        ...


@runtime_checkable
class PacketFaults(Protocol):
    """Links that can be made to lose, delay, duplicate, reorder, corrupt, slow down or reset packets."""

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Degrade exactly these links and restore all others; ``{}`` heals; idempotent. Cuts are separate and stay."""

    async def affected_packets(self) -> Mapping[Link, int]:
        """Return the number of packets affected so far on each link that has conditions now (evidence)."""
        ...


@dataclass(frozen=True)
class DiskUse:
    """The system's use of the disk that faults hit on a machine: the number of the system's ``files`` on it, and the
    system's writes and syncs so far (None: not counted). Use by the harness does not count.

    ``lost_bytes``: bytes of the system's writes that the last loss of unsynced data discarded. ``lost_age``: age in
    seconds of the oldest of these writes when the power went. None: not counted, or nothing was discarded.
    ``damaged``: the first twenty places that the latest damage of files changed, as texts.
    """

    files: int
    writes: int | None = None
    syncs: int | None = None
    lost_bytes: int | None = None
    lost_age: float | None = None
    damaged: tuple[str, ...] = ()


class TellsUse(Protocol):
    """Machines that report whether the system uses the disks that faults hit."""

    async def disk_use(self, node: str) -> DiskUse:
        """Return the system's use of the machine's disk."""
        ...

    async def writes_to(self, node: str) -> tuple[str, ...]:
        """List the folders that the machine's programs write to and that are not on that disk."""
        ...


@runtime_checkable
class PowerControl(TellsUse, Protocol):
    """Machines whose power can be cut."""

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut the power of these machines at the same moment: no process shuts down cleanly, and unsynced writes are
        lost.
        """

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Restore the power of these machines and wait until they are usable; programs are not started."""

    async def boot(self, node: str) -> str:
        """Return an identifier of the machine's current boot (Linux: its boot id)."""
        ...


@runtime_checkable
class Reboots(Protocol):
    """Machines that can be restarted cleanly."""

    async def reboot(self, node: str) -> None:
        """Restart the machine cleanly and wait until it is usable; its programs are not started."""

    async def boot(self, node: str) -> str:
        """Return an identifier of the machine's current boot (Linux: its boot id)."""
        ...


@runtime_checkable
class Clocks(Protocol):
    """Machines with separate clocks, which can be set wrong."""

    async def clock(self, node: str) -> float:
        """Return the machine's time of day, in seconds since 1970."""
        ...

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Set the machine's time of day wrong by ``offset`` seconds from now on, and let it run at ``rate`` times the
        right speed.

        (0, 1) sets the clock right. If a machine has separate clocks, ``rate`` also applies to its monotonic clock,
        which never jumps.
        """


@runtime_checkable
class KeepsSetup(Protocol):
    """Machines whose disks treat what was written before the load as old data."""

    async def load_begins(self, options: Mapping[str, Any]) -> None:
        """Note that the preparations are over, and the load begins, in a test with these options."""


@runtime_checkable
class Disks(TellsUse, Protocol):
    """Machines whose disks can be made to fail."""

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        """Put exactly this fault on the disk of the machine's data folder, in place of any other; None sets the disk
        right.
        """

    async def disk_fault_count(self, node: str) -> int:
        """Return how often the disk's latest fault has affected the system, whether the fault is still in force or not:
        the system's calls that failed or were slow, the times that the disk dropped unsynced data while it held files
        of the system, and the pieces of such files that the disk changed."""
        ...

    async def probe_disk(self, node: str) -> str:
        """Write and sync a small file next to the program's data, and report the outcome.

        Returns:
            ``ok``, ``failed``, ``slow``, or ``unknown`` if the outcome can't be determined. A failed probe does not
                count as an effect of the fault.
        """
        ...


@runtime_checkable
class Files(Protocol):
    """Machines whose files can be deleted."""

    async def remove(self, node: str, path: str) -> None:
        """Delete a file; do nothing if it does not exist. Raise BackendError if it can't be deleted."""
