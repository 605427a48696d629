"""The protocols that backends, systems, clients and workloads fulfil."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harness.op import Op
from harness.spec import Test

if TYPE_CHECKING:
    from nodes.reference.runtime import LoopRuntime

Link = tuple[str, str]
"""(from, to): names of nodes or client hosts, one direction."""


@dataclass(frozen=True)
class Condition:
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


DISK_TROUBLES = ("full", "write-error", "sync-error", "slow", "lose-unsynced", "torn", "corrupt", "empty")


@dataclass(frozen=True)
class DiskTrouble:
    """What is wrong with the disk under a node's data folder until it is set right.

    ``kind`` is one of ``DISK_TROUBLES``: ``full`` (writes fail with ENOSPC), ``write-error`` and
    ``sync-error`` (EIO), ``slow`` (each sync takes ``seconds`` longer), ``lose-unsynced`` (when the broker is killed or
    the machine loses power, what was not synced is gone), ``torn`` (the same, and of the last write that was not synced
    a part is there). Two happen once, when the trouble is set, to a node whose broker is dead: ``corrupt`` (a piece of
    what was stored has turned into noise) and ``empty`` (the disk was replaced by a new one).
    """

    kind: str
    seconds: float = 0.0


@dataclass(frozen=True)
class ProcessState:
    """What the operating system says of a node's broker process.

    ``state`` is ``running``, ``paused`` (stopped by a signal) or ``dead``; ``pid`` is its process id inside
    the node, None when dead.
    """

    state: str
    pid: int | None = None


@dataclass(frozen=True)
class Result:
    """Outcome of a command on a node."""

    status: int
    output: str


class Backend(Protocol):
    """Machines to run nodes on. All times in seconds; every call has a hard time limit of its own.

    The network is set as a whole: ``set_network`` takes every link that is to be cut now, ``()`` heals all.
    A node's broker is one process (group) that ``start`` launched; kill, pause and resume act on it.
    """

    name: str
    in_process: bool
    """Whether its nodes are in this process: then it is an ``InProcessBackend``."""
    faults: Mapping[str, str]
    """Fault family -> how it is honoured here; ``family:kind`` for one of its kinds, where not all can be. What is
    missing is refused."""

    async def provision(self, test: Test, run_dir: Path) -> None:
        """Create nodes and client hosts and connect them."""

    def address(self, name: str) -> str:
        """IP address of a node or of a client host (which a client binds its sockets to)."""
        ...

    def node_dir(self, node: str) -> str:
        """The node's private folder for programs, data and logs, as seen on the node."""
        ...

    def code_dir(self, node: str) -> str:
        """Where programs lie on the node, which may outlive the run and be used by several at once."""
        ...

    def python(self, node: str) -> str:
        """The Python interpreter (3.11 or newer) to run on the node."""
        ...

    async def exec(self, node: str, command: str, timeout: float = 10.0) -> Result:
        """Run a shell command on a node as its administrator."""
        ...

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on a node, atomically, creating its folder."""

    async def download(self, node: str, path: str) -> bytes:
        """Read a file of a node; raises BackendError when it is not there."""
        ...

    async def start(self, node: str, argv: Sequence[str], log: str) -> None:
        """Launch the node's broker in the background, its output appended to the file ``log`` on the node."""

    async def stop(self, node: str, timeout: float = 5.0) -> None:
        """End the broker with SIGTERM, then SIGKILL after ``timeout``; nothing if it is dead."""

    async def kill(self, node: str) -> None:
        """End the broker with SIGKILL."""

    async def pause(self, node: str) -> None:
        """Stop the broker's processes with SIGSTOP."""

    async def resume(self, node: str) -> None:
        """Let the broker's processes go on with SIGCONT."""

    async def process(self, node: str) -> ProcessState:
        """The broker's state, read from the operating system."""
        ...

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Make exactly these links drop every packet and all others pass; idempotent."""

    async def dropped(self) -> Mapping[Link, int]:
        """Packets dropped so far on each link that is cut now (evidence of a partition)."""
        ...

    async def set_conditions(self, conditions: Mapping[Link, Condition]) -> None:
        """Make exactly these links suffer, and all others none; ``{}`` heals; idempotent. Cuts are another matter."""

    async def disturbed(self) -> Mapping[Link, int]:
        """Packets that were disturbed so far on each link that has a condition now (evidence)."""
        ...

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut the power of these machines at the same moment: no process ends in order, un-synced writes are lost."""

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Give these machines power and wait until they can be used; brokers are not started."""

    async def reboot(self, node: str) -> None:
        """Restart the machine in order and wait until it can be used; its broker is not started."""

    async def boot(self, node: str) -> str:
        """What tells one boot of the machine from another (Linux: its boot id)."""
        ...

    async def clock(self, node: str) -> float:
        """The node's time of day, seconds since 1970."""
        ...

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Make the node's time of day ``offset`` seconds wrong from now on, running ``rate`` times as fast as right.

        (0, 1) sets it right. Where a machine has clocks of its own, ``rate`` is also that of its monotonic clock, which
        never jumps.
        """

    async def set_disk(self, node: str, trouble: DiskTrouble | None) -> None:
        """Bring this trouble, and no other, upon the disk of the node's data folder; None sets it right."""

    async def disk_harm(self, node: str) -> int:
        """How often the disk's latest trouble has shown, whether it lasts or not: calls that failed or were slow, times
        that it dropped what was not synced, pieces that it changed."""
        ...

    async def probe_disk(self, node: str) -> str:
        """What becomes of a small file that is written beside the broker's data and synced.

        ``ok``, ``failed``, ``slow``, or ``unknown`` when it can't be told. It does not count as harm.
        """
        ...

    async def probe(self, link: Link, timeout: float) -> str:
        """Whether a packet from one node to another passes and is answered within ``timeout`` seconds.

        ``open`` when it is, ``cut`` when it is not, ``unknown`` when it can't be told.
        """
        ...

    async def release(self) -> None:
        """Remove everything that ``provision`` made; safe to call twice or after a failed provision."""


class Program(Protocol):
    """A broker that runs in this process."""

    def stop(self) -> None:
        """What SIGTERM does."""

    async def run(self) -> int:
        """Wait for its end; the exit status."""
        ...


class InProcessBackend(Backend, Protocol):
    """A backend whose nodes are in this process: it launches programs instead of commands."""

    async def launch(self, node: str, program: Callable[[LoopRuntime], Program], log: str) -> None:
        """Start a broker on a node, which is given the node's runtime; its log is the file ``log`` there."""


@dataclass(frozen=True)
class NodeStatus:
    """What a broker says of itself.

    ``role`` is the design's word (``master``, ``slave``, ``starting``...), ``serving`` whether it takes
    clients, ``epoch`` the number of its view or term, ``view`` the members it believes in, in order.
    ``depths`` maps a queue's name to the messages in it, delivered-but-unacknowledged ones included.
    """

    node: str
    reachable: bool
    role: str = "?"
    serving: bool = False
    epoch: int = 0
    view: tuple[str, ...] = ()
    depths: Mapping[str, int] | None = None
    detail: Mapping[str, Any] | None = None


class Cluster(Protocol):
    """A running system under test, as clients and nemeses see it."""

    test: Test
    backend: Backend

    async def status(self, node: str) -> NodeStatus:
        """Ask one node; never raises: an unreachable node has ``reachable=False``."""
        ...

    async def statuses(self) -> list[NodeStatus]:
        """Ask all nodes at once, in node order."""
        ...

    async def master(self) -> str | None:
        """The node that serves (the one with the highest epoch if several do), or None."""
        ...

    async def start_node(self, node: str) -> None:
        """Start the broker on a node that was killed."""

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until all nodes agree on one serving cluster; False when ``timeout`` passes."""
        ...


class Client(Protocol):
    """One logical process's way to the system. After an ``info`` it is closed and a new one is opened."""

    async def open(self) -> None:
        """Connect; an exception here completes the operation as ``fail``."""

    async def invoke(self, op: Op) -> Op:
        """Carry out the operation and return its completion; an exception is recorded as ``info``."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise and must not hang."""


@runtime_checkable
class Settling(Client, Protocol):
    """A client that may hold what was confirmed to it and is not safe yet."""

    async def settle(self) -> None:
        """Wait until all of it is safe, or can't be saved; no operation is under way. Must not raise.

        The interpreter calls it of a client that its thread has lost, before it closes it; and, when all faults
        are healed, of every client in use.
        """


@dataclass(frozen=True)
class Option:
    """A setting that ``--set name=value`` takes, declared by a design, workload or nemesis.

    A number is at least ``least``. ``load``: it counts clients, or what they use, and a smaller test has fewer.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0
    load: bool = False
