"""Backends: machines to run nodes on, split by what they can do.

Every backend is a ``Backend``. Beyond that it has the abilities whose protocols it fulfils: ``Shells`` or ``Launcher``
to start programs, ``PacketFaults``, ``PowerControl``, ``Reboots``, ``Clocks``, ``Disks``, ``Files``, ``HasPoints``;
``Attached`` ones are not made by a run. Its ``abilities`` say in words how each is honoured; a fault says which it
needs (``stormproof.contracts.fault``). All times are in seconds; every call has a hard time limit of its own.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError
from stormproof.process_owner import Leftover
from stormproof.test import Test

Link = tuple[str, str]
"""(from, to): names of machines or client hosts, one direction; on a further network, ``n1@NETWORK``."""

LINKS, PAUSE, KILL, PACKETS, POWER, REBOOT, CLOCKS, DISKS, FILES, POINTS = (
    "links", "pause", "kill", "packets", "power", "reboot", "clocks", "disks", "files", "points"
)  # fmt: skip
"""Names of abilities that faults need; ``packets:loss`` is the ability to inject that kind only."""

OWN_ROOT, SHARED_ROOT, HOST_ROOT = "own", "shared", "host"
"""Whose files a machine sees: its own, which end with the run; this machine's; or those of a host that lives on."""

RUNNING, PAUSED, DEAD = "running", "paused", "dead"


@dataclass(frozen=True)
class LinkConditions:
    """What a link suffers short of a cut; the default is a good link.

    ``loss``, ``duplicate``, ``reorder``, ``corrupt`` and ``reset`` are shares of its packets, 0 to 1: lost, arriving
    twice, overtaken by later ones, with a wrong bit (which the receiver's checksum discards), answered by a TCP reset.
    ``delay`` is added to each packet, in seconds, give or take ``jitter``. ``rate`` is what the link carries, in bytes
    a second; 0 is unlimited.
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


@dataclass(frozen=True)
class DiskFault:
    """What is wrong with the disk under a machine's data folder until it is set right.

    ``kind`` is one of ``DISK_FAULTS``: ``full`` (writes fail with ENOSPC), ``write-error`` and
    ``sync-error`` (EIO), ``slow`` (each sync takes ``seconds`` longer), ``lose-unsynced`` (when a program is killed or
    the machine loses power, what was not synced is gone), ``torn`` (the same, and of the last write that was not synced
    a part is there). Two happen once, when the fault is set, to a machine whose programs are dead: ``corrupt`` (a piece
    of what was stored has turned into noise) and ``empty`` (the disk was replaced by a new one).
    """

    kind: str
    seconds: float = 0.0


@dataclass(frozen=True)
class ProcessState:
    """What the operating system says of a program's process.

    ``state`` is ``running``, ``paused`` (stopped by a signal) or ``dead``; ``pid`` is its process id inside
    the machine, None when dead; ``born`` tells one process from a later one with the same id.
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
    """One thing that a machine may lack: ``detail`` says what was found, ``mend`` what to do if it is missing."""

    name: str
    available: bool
    detail: str
    mend: str = ""


class Backend(ABC):
    """Machines that can be provisioned, addressed, cut off from each other, and whose programs can be signalled.

    The network is set as a whole: ``set_network`` takes every link that is to be cut now, ``()`` heals all.
    A program is one process group under its name; kill, pause and resume act on it alone.

    ``in_process``: its machines are in this process, under simulated time; then it is a ``Launcher``. ``abilities`` say
    how each ability is honoured, ``ability:kind`` where not all kinds are; what is missing is refused. ``lateness`` are
    the seconds by which what happens on a machine may be later than its own timers say, None where its clock can't be
    compared with the harness's. ``root_folder`` says whose files its machines see. ``by_default``: it may be chosen
    where none is named. ``also_type`` is what a command line has to say beside ``--backend``.
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
        """What goes before the command of the process that provisions.

        Raises:
            BackendError: this machine lets this user make no nodes; the message says what would help.
        """
        return []

    @staticmethod
    def requirements() -> Sequence[Capability]:
        """What it takes to use it here, each with whether it is there; takes tenths of a second."""
        return ()

    @staticmethod
    def lacks() -> Mapping[str, str]:
        """Those of its abilities that can't be had on this machine, each with the reason and what would mend it."""
        return {}

    @staticmethod
    def cannot(test: Test, topology: Topology) -> str:
        """Why such a test can't be here, on whatever machines; empty: it can."""
        return ""

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as they are to be stored: paths made absolute."""
        return dict(given)

    @staticmethod
    def leftovers() -> Sequence[Leftover]:
        """What runs have made on this machine and is still there, of runs that live and of others, but for folders."""
        return ()

    @staticmethod
    def obstacle() -> str | None:
        """Why it can't be said here that a dead run has left nothing; None when it can."""
        return None

    @staticmethod
    def check_settings(options: Mapping[str, Any]) -> None:
        """Raises UsageError where a value of its settings makes no sense."""

    @abstractmethod
    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create machines and client hosts and connect them."""

    @abstractmethod
    def address(self, name: str) -> str:
        """IP address of a machine, or of a client host (which a client binds its sockets to); ``n1@NETWORK`` is that of
        n1 on a further network."""

    @abstractmethod
    def node_dir(self, node: str) -> str:
        """The machine's private folder for programs, data and logs, as seen on the machine."""

    def data_dir(self, node: str) -> str:
        """The folder below it that is on the machine's own disk: what disk faults and power cuts hit."""
        return f"{self.node_dir(node)}/data"

    def shared_dir(self, name: str) -> str:
        """A folder that all machines have in common (``Topology.shared``), as seen on each.

        Raises:
            BackendError: there is none of that name.
        """
        raise BackendError(f"these machines have no folder {name!r} in common")

    @abstractmethod
    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on a machine, atomically, creating its folder."""

    @abstractmethod
    async def download(self, node: str, path: str) -> bytes:
        """Read a file of a machine; raises BackendError when it is not there."""

    @abstractmethod
    async def stop(self, node: str, program: str, timeout: float = 5.0) -> None:
        """End a program with SIGTERM, then SIGKILL after ``timeout``; nothing if it is dead."""

    @abstractmethod
    async def kill(self, node: str, program: str) -> None:
        """End a program with SIGKILL; nothing if it is dead."""

    @abstractmethod
    async def pause(self, node: str, program: str) -> None:
        """Stop a program's processes with SIGSTOP; raises BackendError when it is dead."""

    @abstractmethod
    async def resume(self, node: str, program: str) -> None:
        """Let a program's processes go on with SIGCONT; raises BackendError when it is dead."""

    @abstractmethod
    async def process(self, node: str, program: str) -> ProcessState:
        """A program's state, read from the operating system."""

    @abstractmethod
    async def set_network(self, cut: frozenset[Link]) -> None:
        """Make exactly these links drop every packet and all others pass; idempotent."""

    @abstractmethod
    async def dropped(self) -> Mapping[Link, int]:
        """Packets dropped so far on each link that is cut now (evidence of a partition)."""

    @abstractmethod
    async def probe(self, link: Link, timeout: float) -> str:
        """Whether a packet from one machine to another passes and is answered within ``timeout`` seconds.

        ``open`` when it is, ``cut`` when it is not, ``unknown`` when it can't be told.
        """

    @abstractmethod
    async def release(self) -> None:
        """Remove everything that ``provision`` made; safe to call twice or after a failed provision."""


@runtime_checkable
class Holding(Protocol):
    """Machines whose programs can be looked into."""

    def holdings(self, node: str) -> Mapping[str, int]:
        """What the programs of a node that run hold in memory and in their databases: name of a container or table ->
        how many things; small ones are left out."""
        ...


@runtime_checkable
class CountsFrames(Protocol):
    """Machines whose network counts what programs send."""

    def sent(self) -> Mapping[Link, tuple[int, int]]:
        """Frames (what a program hands to its kernel at once) and bytes sent so far, on each link that was used."""
        ...

    def dialled(self) -> Mapping[Link, int]:
        """How often programs have tried to connect so far, on each link."""
        ...

    def written(self) -> Mapping[str, int]:
        """How often the programs of each machine have written to its disk so far."""
        ...


@dataclass(frozen=True)
class Usage:
    """What the programs of a machine use.

    Counted since the machine is measured: ``cpu`` (seconds), ``read`` and ``written`` (bytes from and to storage) of
    its programs, ``received`` and ``sent`` (bytes on the wire) of the machine. As it is now: ``memory`` (bytes
    resident; what processes share counts for each), ``disk`` (bytes that its folder takes, and files elsewhere that its
    programs had open for writing), ``processes``.
    ``sampling`` are the CPU seconds that the measuring takes there. None: it can't be told there.
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
    """Machines that tell what their programs use."""

    def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        """What is used there, about each ``interval`` seconds, counted from the first one on, until it is closed.

        Raises:
            BackendError: it can't be told, or not any more.
        """
        ...


@runtime_checkable
class Disturbed(Protocol):
    """Machines that are looked at, and judged by whether a fault is in force."""

    def told_of_faults(self, disturbed: Callable[[], tuple[bool, int]]) -> None:
        """``disturbed`` says whether a fault is in force, and how many steps of faults there have been."""
        ...


@runtime_checkable
class Shells(Protocol):
    """Machines with a shell: commands are run and programs are started there."""

    def code_dir(self, node: str) -> str:
        """Where programs lie on the machine, which may outlive the run and be used by several at once."""
        ...

    def python(self, node: str) -> str:
        """The Python interpreter (3.11 or newer) to run on the machine."""
        ...

    async def exec(self, node: str, command: str, timeout: float = 10.0) -> CommandResult:
        """Run a shell command on a machine as its administrator."""
        ...

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Launch a program in the background, its output appended to the file ``log`` on the machine.

        Raises:
            BackendError: it runs there already, or there is no such command.
        """


@dataclass(frozen=True)
class Credentials:
    """As whom clients connect; an empty ``login`` names nobody, an empty ``passcode`` is none."""

    login: str = ""
    passcode: str = field(default="", repr=False)


@runtime_checkable
class Attached(Protocol):
    """Machines on which a system runs already: nothing is installed, started, stopped or removed there."""

    def port(self, node: str) -> int:
        """The port of a replica that clients connect to; ``Backend.address`` is its address."""
        ...

    def credentials(self) -> Credentials:
        """As whom clients connect there."""
        ...


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Runtime(Protocol):
    """What a program that is launched in this process may use of the outside world."""

    random: random.Random

    def now(self) -> float:
        """Monotonic seconds of the machine."""
        ...

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection."""
        ...

    async def serve(self, handler: Handler, host: str, port: int) -> asyncio.Server:
        """Listen on a TCP port; ``handler`` runs as a task for each connection."""
        ...

    def write_log(self, line: str) -> None:
        """Add a line to the program's log."""


class LaunchedProgram(Protocol):
    """A program that runs in this process."""

    def stop(self) -> None:
        """What SIGTERM does."""

    async def run(self) -> int:
        """Wait for its end; the exit status."""
        ...


Launch = Callable[[Any], LaunchedProgram]
"""Starts a program, given its machine's ``Runtime``."""


@runtime_checkable
class Launcher(Protocol):
    """Machines in this process: programs are launched instead of started by a command."""

    async def launch(self, node: str, program: str, start: Launch, log: str, shared: str = "") -> None:
        """Start a program on a machine, which is given the machine's runtime; its log is the file ``log`` there.

        ``shared``: the folder that all machines have in common in which its databases are; else they are the machine's.
        """


@runtime_checkable
class MovableAddresses(Protocol):
    """Machines in this process, whose programs move addresses (``Topology.addresses``) without a command."""

    def give_address(self, node: str, address: str, seconds: float) -> None:
        """The machine has the address for so many seconds from now, unless it is given again."""

    def take_address(self, node: str, address: str) -> None:
        """The machine has it no more; nothing if it had not."""

    def announce_address(self, node: str, address: str) -> None:
        """Whoever sends to the address sends to this machine from now on, as after a gratuitous ARP."""

    def has_address(self, node: str, address: str) -> bool:
        """Whether the machine has it."""
        ...


@runtime_checkable
class PacketFaults(Protocol):
    """Links can be made to lose, delay, double, reorder, damage, slow down or reset packets."""

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Make exactly these links suffer, and all others none; ``{}`` heals; idempotent. Cuts are another matter."""

    async def affected_packets(self) -> Mapping[Link, int]:
        """Packets that suffered so far on each link that has conditions now (evidence)."""
        ...


@dataclass(frozen=True)
class DiskUse:
    """The system's use of a machine's disk that faults hit: how many ``files`` of the system are there, and how often
    the system has written and synced so far (None: not counted). Use by the harness does not count."""

    files: int
    writes: int | None = None
    syncs: int | None = None


class TellsUse(Protocol):
    """Machines that tell whether the system uses the disks that faults hit."""

    async def disk_use(self, node: str) -> DiskUse:
        """Tell how the system uses the machine's disk."""
        ...

    async def writes_to(self, node: str) -> tuple[str, ...]:
        """List the folders to which the machine's programs write and that are not on that disk."""
        ...


@runtime_checkable
class PowerControl(TellsUse, Protocol):
    """Machines whose power can be cut."""

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut the power of these machines at the same moment: no process ends in order, un-synced writes are lost."""

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Give these machines power and wait until they can be used; programs are not started."""

    async def boot(self, node: str) -> str:
        """What tells one boot of the machine from another (Linux: its boot id)."""
        ...


@runtime_checkable
class Reboots(Protocol):
    """Machines that can be restarted in order."""

    async def reboot(self, node: str) -> None:
        """Restart the machine in order and wait until it can be used; its programs are not started."""

    async def boot(self, node: str) -> str:
        """What tells one boot of the machine from another (Linux: its boot id)."""
        ...


@dataclass(frozen=True)
class PointStrike:
    """What is to happen to the program that comes to the point ``point`` as the ``hit``-th (from 1 on, all programs
    together) since this was armed.

    ``act`` is one of ``POINT_ACTS``: ``kill`` ends it there; ``power`` takes its machine's power, with what was not
    synced; ``pause`` lets it stand still there for ``seconds``, with what arrives meanwhile unread; ``cut`` loses every
    packet on the ``links`` of its machine from then on, ``delay`` lets them suffer by ``conditions``; ``partial`` loses
    every packet on the ``links``, and the machine's power after ``seconds``, so that some only have heard what it said
    last (a broadcast that the sender's crash leaves incomplete); what is on the links of ``hush`` is lost then, for
    ``silence`` seconds at least, so that the others may go on without those who have. ``programs`` are those that may
    be struck, by machine.
    ``after``: one that is to end first does and says what it was about to, and nothing more. Nobody is ended or paused
    there while ``most_down`` of ``nodes`` are down.
    """

    act: str
    point: str
    hit: int
    programs: Mapping[str, tuple[str, ...]]
    nodes: tuple[str, ...]
    most_down: int
    seconds: float = 0.0
    links: Mapping[str, frozenset[Link]] = field(default_factory=dict)
    conditions: LinkConditions | None = None
    after: bool = False
    hush: Mapping[str, frozenset[Link]] = field(default_factory=dict)
    silence: float = 0.0


POINT_ACTS = ("kill", "power", "pause", "cut", "delay", "partial")


@dataclass(frozen=True)
class StruckPoint:
    """Who was struck: process ``pid`` of a ``program``, at ``point``, which all programs together had come by ``count``
    times in this run, ``time`` seconds after its beginning."""

    machine: str
    program: str
    pid: int
    point: str
    count: int
    time: float


class FaultPoints(Protocol):
    """The named points of the programs; at most one strike is armed at a time."""

    counts: Mapping[str, int]
    """How often the programs have come by each that they declare."""
    struck: StruckPoint | None
    """What came of the strike that was armed last; None: nothing yet."""
    ended: bool
    """Whether who was struck to end a moment later (``partial``) has ended."""

    def arm(self, strike: PointStrike) -> None:
        """Strike from now on."""

    def loosen(self, names: Collection[str]) -> None:
        """Strike at the next of these points instead."""

    def disarm(self) -> None:
        """Strike no more; what is in effect stays so."""

    def lift(self) -> Mapping[Link, int]:
        """Let the links that were struck be as before; how many packets each has lost or delayed."""
        ...


@runtime_checkable
class HasPoints(Protocol):
    """Machines whose programs can be struck at named points of their code."""

    points: FaultPoints


@runtime_checkable
class Clocks(Protocol):
    """Machines with clocks of their own, which can be set wrong."""

    async def clock(self, node: str) -> float:
        """The machine's time of day, seconds since 1970."""
        ...

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Make the machine's time of day ``offset`` seconds wrong from now on, running ``rate`` times as fast as right.

        (0, 1) sets it right. Where a machine has clocks of its own, ``rate`` is also that of its monotonic clock, which
        never jumps.
        """


@runtime_checkable
class Disks(TellsUse, Protocol):
    """Machines whose disks can be made to fail."""

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        """Bring this fault, and no other, upon the disk of the machine's data folder; None sets it right."""

    async def disk_fault_count(self, node: str) -> int:
        """How often the disk's latest fault has shown to the system, whether it lasts or not: calls of the system that
        failed or were slow, times that the disk dropped what was not synced and had files of the system, pieces of such
        files that it changed."""
        ...

    async def probe_disk(self, node: str) -> str:
        """What becomes of a small file that is written beside the program's data and synced.

        ``ok``, ``failed``, ``slow``, or ``unknown`` when it can't be told. It does not count as a fault that showed.
        """
        ...


@runtime_checkable
class Files(Protocol):
    """Machines whose files can be deleted."""

    async def remove(self, node: str, path: str) -> None:
        """Delete a file; nothing if there is none. Raises BackendError when it can't be deleted."""
