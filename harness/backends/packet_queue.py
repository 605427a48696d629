"""The program that degrades a node's links where its kernel has no network emulator. It runs on the node.

Loss, duplicates and resets are rules of a dedicated nftables table. Faults that need time or change a packet (delay,
jitter, reordering, corruption, a limited rate) are produced by this program: a rule hands the packets of such links to
a queue (NFQUEUE; libnetfilter_queue's protocol is implemented here), and the program decides when and how each packet
proceeds. A link into the node is degraded where its packets arrive. A link to an address outside the cluster's nodes is
degraded where its packets leave.

The program reads one JSON object a line from standard input. It is either the whole desired state, ``{"arriving":
{ADDRESS: {"loss": 0.1}}, "leaving": {}}``, or ``{"counts": true}``. Each is answered with the packets affected so far
on each link. The end of its input, which also follows when its parent ends, undoes everything. If the program itself is
killed, the kernel lets packets bypass the queue (``bypass``). It uses only the standard library and no module of this
project, because it is sent to the node as one file.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TABLE = "ip stormproof_packets"
QUEUE = 5757
"""The queue's number in the kernel; the node's network namespace has no other user of queues."""

ARRIVING, LEAVING = "arriving", "leaving"
CHAINS = {ARRIVING: ("input", "saddr", "stormproof-in"), LEAVING: ("output", "daddr", "stormproof-out")}
"""The path of each direction's packets: hook, the address field that identifies the link, and a chain of iptables."""

REORDER_SECONDS = 0.01
"""The least number of seconds for which a packet is held so that later ones overtake it."""

QUEUED = ("delay", "jitter", "reorder", "corrupt", "rate")
"""Conditions that only the queue can produce."""

_SHARES = 1_000_000
_COUNTED = re.compile(r'counter packets (\d+) .*comment "(\w+) ([\d.]+)"')
_LIMIT = 100_000
_COPY_HEADERS, _COPY_ALL = 64, 0xFFFF

# Constants of linux/netfilter/nfnetlink_queue.h.
_NETLINK_NETFILTER, _SOL_NETLINK, _NO_ENOBUFS, _RCVBUFFORCE = 12, 270, 5, 33
_PACKET, _VERDICT, _CONFIG = (3 << 8 | number for number in range(3))
_CFG_CMD, _CFG_PARAMS, _CFG_MAXLEN, _CFG_MASK, _CFG_FLAGS = range(1, 6)
_BIND, _COPY_PACKET, _FAIL_OPEN = 1, 2, 1
_PACKET_HDR, _VERDICT_HDR, _PAYLOAD = 1, 2, 10
_REQUEST, _ACK, _ERROR = 1, 4, 2
_HOOKS = {1: ARRIVING, 3: LEAVING}
_ACCEPT = 1

Key = tuple[str, str]
"""(arriving or leaving, address)."""
State = dict[Key, dict[str, float]]


class Packet(NamedTuple):
    """A packet that waits for a verdict; ``data`` holds as many of its bytes as the kernel was configured to copy."""

    id: int
    key: Key
    data: bytes

    @property
    def length(self) -> int:
        """The length of the whole packet in bytes, from its IPv4 header."""
        return int.from_bytes(self.data[2:4], "big")


class PacketVerdict(NamedTuple):
    """The decision about a packet: its departure time, its new bytes if they changed, and whether it was affected."""

    due: float
    payload: bytes | None
    suffered: bool


class DegradedLink:
    """One degraded link; ``free`` is the time at which a slow link has transmitted the packets so far."""

    def __init__(self, condition: Mapping[str, float]) -> None:
        self.condition = dict(condition)
        self.free = 0.0

    def judge(self, packet: Packet, now: float, rng: random.Random) -> PacketVerdict:
        """Return the verdict on a packet that arrived ``now``.

        The packet may be delayed, held back so that others overtake it, damaged, or queued for its turn.
        """
        get = self.condition.get
        delay, jitter, rate = get("delay", 0.0), get("jitter", 0.0), get("rate", 0.0)
        suffered = bool(delay or jitter or rate)
        seconds = delay
        if jitter:
            seconds = max(0.0, delay + jitter * rng.uniform(-1, 1))
        if rng.random() < get("reorder", 0.0):
            seconds += max(REORDER_SECONDS, delay)
            suffered = True
        if rate:
            self.free = max(now, self.free) + packet.length / rate
            seconds += self.free - now
        payload = None
        if rng.random() < get("corrupt", 0.0):
            payload = damaged(packet.data, rng)
            suffered = True
        return PacketVerdict(now + seconds, payload, suffered)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return an IPv4 packet with one wrong bit after its header, which a checksum of TCP or UDP detects."""
    start = 4 * (data[0] & 15)
    if start >= len(data):
        return data
    position = rng.randrange(start, len(data))
    return data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :]


def parse_state(order: Mapping[str, Any]) -> State:
    """Return the desired state in an order: the conditions of each link, without zeros."""
    return {
        (way, address): {name: float(value) for name, value in condition.items() if value}
        for way in CHAINS
        for address, condition in order.get(way, {}).items()
    }


def needs_queue(condition: Mapping[str, float]) -> bool:
    """Return whether a condition needs more than a rule."""
    return any(condition.get(name) for name in QUEUED)


def table_script(state: State, queue: bool) -> str:
    """Return the input for ``nft -f`` that sets the table to exactly this state; ``queue``: rules also fill the queue.

    A packet that is duplicated on arrival is delivered a second time over the loopback device, where it is not
    duplicated again.
    """
    lines = [f"add table {TABLE}", f"delete table {TABLE}"]
    if not state:
        return "\n".join(lines) + "\n"
    lines.append(f"table {TABLE} {{")
    for way, (hook, field, _) in CHAINS.items():
        links = {address: condition for (each, address), condition in state.items() if each == way}
        if not links:
            continue
        lines += [f"chain {hook} {{", f"type filter hook {hook} priority -160; policy accept;"]
        for address, condition in links.items():
            lines += _rules(way, f"ip {field} {address}", address, condition)
        lines.append("}")
        queued = [address for address, condition in links.items() if needs_queue(condition)]
        if queue and queued:
            lines += [f"chain {hook}_queue {{", f"type filter hook {hook} priority -150; policy accept;"]
            lines += [f"ip {field} {address} queue num {QUEUE} bypass" for address in queued]
            lines.append("}")
    return "\n".join([*lines, "}"]) + "\n"


def _rules(way: str, match: str, address: str, condition: Mapping[str, float]) -> list[str]:
    """Return the rules for the random faults of a link; each counts the packets that it hits."""
    note = f'comment "{way} {address}"'
    # The copy goes to the packet's destination: an arriving packet is addressed to this node.
    copy = "ip daddr" if way == ARRIVING else address
    rules = []
    if loss := condition.get("loss"):
        rules.append(f"{match} {_by_chance(loss)} counter drop {note}")
    if reset := condition.get("reset"):
        # Resets themselves pass, because no host answers them.
        rules.append(f"{match} tcp flags & rst == 0 {_by_chance(reset)} counter reject with tcp reset {note}")
    if duplicate := condition.get("duplicate"):
        fresh = 'iifname != "lo" ' if way == ARRIVING else ""
        rules.append(f"{match} {fresh}{_by_chance(duplicate)} counter dup to {copy} {note}")
    return rules


def _by_chance(share: float) -> str:
    hits = max(1, round(share * _SHARES))
    return f"numgen random mod {_SHARES} < {hits}" if hits < _SHARES else ""


def iptables_script(state: State) -> str:
    """Return the input for ``iptables-restore --noflush`` that hands exactly these links' packets to the queue."""
    lines = ["*mangle", *(f":{chain} - [0:0]" for _, _, chain in CHAINS.values())]
    for (way, address), condition in state.items():
        if needs_queue(condition):
            _, field, chain = CHAINS[way]
            lines.append(f"-A {chain} -{field[0]} {address} -j NFQUEUE --queue-num {QUEUE} --queue-bypass")
    return "\n".join([*lines, "COMMIT"]) + "\n"


def parse_counts(text: str) -> dict[Key, int]:
    """Return the packets that the table's rules hit on each link, from the output of ``nft list table``."""
    counts: dict[Key, int] = {}
    for packets, way, address in _COUNTED.findall(text):
        counts[way, address] = counts.get((way, address), 0) + int(packets)
    return counts


class KernelRules:
    """The rules in the kernel, and the tool that can refer to a queue: nft itself, or iptables."""

    def __init__(self) -> None:
        self._iptables = ""
        self._tried = False

    def set(self, state: State) -> None:
        """Set exactly these rules. Raises OSError when the kernel or its tools cannot."""
        if not self._tried and any(map(needs_queue, state.values())):
            self._try_queue(state)
        _run(["nft", "-f", "-"], table_script(state, queue=not self._iptables))
        if self._iptables:
            _run([f"{self._iptables}-restore", "--noflush"], iptables_script(state))

    def counts(self) -> dict[Key, int]:
        """Return the packets that rules have hit so far."""
        return parse_counts(_run(["nft", "list", "table", *TABLE.split()], "", check=False))

    def clear(self) -> None:
        """Remove all rules."""
        _run(["nft", "-f", "-"], table_script({}, queue=False), check=False)
        if self._iptables:
            for _, (hook, _, chain) in CHAINS.items():
                for words in (["-D", hook.upper(), "-j", chain], ["-F", chain], ["-X", chain]):
                    _run([self._iptables, "-t", "mangle", *words], "", check=False)

    def _try_queue(self, state: State) -> None:
        """Find a tool that works with this kernel: nft's own queue statement needs CONFIG_NFT_QUEUE."""
        try:
            _run(["nft", "-f", "-"], table_script(state, queue=True))
        except OSError as error:
            failures = [str(error)]
        else:
            self._tried = True
            return
        for tool in ("iptables-nft", "iptables-legacy", "iptables"):
            try:
                _run([f"{tool}-restore", "--noflush"], iptables_script(state))
                for hook, _, chain in CHAINS.values():
                    _run([tool, "-t", "mangle", "-I", hook.upper(), "-j", chain], "")
            except OSError as error:
                failures.append(str(error))
                continue
            self._iptables, self._tried = tool, True
            return
        raise OSError(f"no rule hands packets to a queue here: {'; '.join(failures)}")


def _run(argv: list[str], text: str, check: bool = True) -> str:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    tool = shutil.which(argv[0], path=path)
    if tool is None:
        if check:
            raise OSError(f"{argv[0]} is not installed")
        return ""
    done = subprocess.run([tool, *argv[1:]], input=text, capture_output=True, text=True, timeout=10, check=False)
    if check and done.returncode != 0:
        raise OSError(f"{argv[0]}: {' '.join(done.stderr.split())[:300]}")
    return done.stdout


class KernelQueue:
    """A queue of the kernel in which packets wait for this program's verdicts (nfnetlink_queue)."""

    def __init__(self) -> None:
        """Open the queue; raises OSError when the kernel has no such queues, or another program holds this one."""
        self._serial = 0
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self.socket.bind((0, 0))
        self.socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 24)
        except OSError:
            pass  # A smaller buffer suffices; packets that exceed it pass.
        try:
            self._configure(_attribute(_CFG_CMD, struct.pack(">BxH", _BIND, socket.AF_INET)))
            self._configure(_attribute(_CFG_MAXLEN, struct.pack(">I", _LIMIT)))
            self._configure(
                _attribute(_CFG_FLAGS, struct.pack(">I", _FAIL_OPEN))
                + _attribute(_CFG_MASK, struct.pack(">I", _FAIL_OPEN))
            )
            self.copy(whole=False)
        except OSError as error:
            self.socket.close()
            raise OSError(f"the kernel gives us no queue for packets: {error.strerror}") from None
        self.socket.setblocking(False)

    def copy(self, whole: bool) -> None:
        """Choose whether packets are delivered whole, to be changed, or only their first bytes."""
        size = _COPY_ALL if whole else _COPY_HEADERS
        self._configure(_attribute(_CFG_PARAMS, struct.pack(">IB", size, _COPY_PACKET)))

    def receive(self) -> list[Packet]:
        """Return the packets that have arrived; at most a few hundred at once."""
        found: list[Packet] = []
        for _ in range(256):
            try:
                message = self.socket.recv(1 << 17)
            except BlockingIOError:
                break
            found += _packets(message)
        return found

    def release(self, ident: int, payload: bytes | None = None) -> None:
        """Release a packet, with other bytes if these are given."""
        attributes = _attribute(_VERDICT_HDR, struct.pack(">II", _ACCEPT, ident))
        if payload is not None:
            attributes += _attribute(_PAYLOAD, payload)
        try:
            self.socket.send(_message(_VERDICT, _REQUEST, attributes))
        except OSError:
            pass  # The packet has vanished, with its connection or device.

    def _configure(self, attributes: bytes) -> None:
        """Set an option, and check that the kernel accepts it. Packets that arrive during that pass unharmed."""
        self._serial += 1
        self.socket.setblocking(True)
        self.socket.send(_message(_CONFIG, _REQUEST | _ACK, attributes, self._serial))
        while True:
            message = self.socket.recv(1 << 17)
            kind, _, serial = struct.unpack_from("=HHI", message, 4)
            if kind == _ERROR and serial == self._serial:
                break
            for packet in _packets(message):
                self.release(packet.id)
        self.socket.setblocking(False)
        (number,) = struct.unpack_from("=i", message, 16)
        if number:
            raise OSError(-number, os.strerror(-number))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, flags: int, attributes: bytes, serial: int = 0) -> bytes:
    body = struct.pack(">BBH", socket.AF_UNSPEC, 0, QUEUE) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, serial, 0) + body


def _packets(message: bytes) -> list[Packet]:
    """Return the packets in a message of the kernel."""
    found, position = [], 0
    while position + 16 <= len(message):
        length, kind = struct.unpack_from("=IH", message, position)
        if length < 16:
            break
        if kind == _PACKET:
            found += _packet(message[position + 20 : position + length])
        position += length + -length % 4
    return found


def _packet(body: bytes) -> list[Packet]:
    values, position = {}, 0
    while position + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, position)
        if length < 4:
            break
        values[kind & 0x3FFF] = body[position + 4 : position + length]
        position += length + -length % 4
    ident, _, hook = struct.unpack_from(">IHB", values[_PACKET_HDR])
    data = values.get(_PAYLOAD, b"")
    way = _HOOKS.get(hook, "")
    address = data[12:16] if way == ARRIVING else data[16:20]
    return [Packet(ident, (way, ".".join(map(str, address))), data)]


class Program:
    """Carries out orders, and releases each packet when it is due."""

    def __init__(self, rules: KernelRules, open_queue: Callable[[], KernelQueue], rng: random.Random) -> None:
        self._rules = rules
        self._open_queue = open_queue
        self._rng = rng
        self._queue: KernelQueue | None = None
        self._state: State = {}
        self._links: dict[Key, DegradedLink] = {}
        self._counts: dict[Key, int] = {}
        self._carried: dict[Key, int] = {}
        """The counts of the rules from before they were last replaced."""
        self._waiting: list[tuple[float, int, Packet, bytes | None]] = []
        self._serial = 0

    @property
    def queue_socket(self) -> socket.socket | None:
        """The socket from which packets arrive; None before it is needed."""
        return self._queue.socket if self._queue else None

    def carry_out(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order; returns the answer, with the reason if the order failed."""
        try:
            if "counts" not in order:
                self._set(parse_state(order))
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}
        return self._answer()

    def _set(self, state: State) -> None:
        if any(map(needs_queue, state.values())) and self._queue is None:
            self._queue = self._open_queue()
        self._carried = {key: count for key, count in self._ruled().items() if key in state}
        self._release_all()  # The kernel drops queued packets when a table is replaced.
        self._rules.set(state)
        self._counts = {key: count for key, count in self._counts.items() if key in state}
        self._state = state
        self._links = {key: DegradedLink(condition) for key, condition in state.items() if needs_queue(condition)}
        if self._queue is not None:
            self._queue.copy(whole=any(link.condition.get("corrupt") for link in self._links.values()))

    def _ruled(self) -> dict[Key, int]:
        found = self._rules.counts() if self._state else {}
        return {key: found.get(key, 0) + self._carried.get(key, 0) for key in {*found, *self._carried}}

    def _answer(self) -> dict[str, Any]:
        ruled = self._ruled()
        answer: dict[str, Any] = {ARRIVING: {}, LEAVING: {}}
        for way, address in self._state:
            answer[way][address] = self._counts.get((way, address), 0) + ruled.get((way, address), 0)
        return answer

    def take(self, now: float) -> None:
        """Judge the packets that have arrived."""
        if self._queue is None:
            return
        for packet in self._queue.receive():
            link = self._links.get(packet.key)
            if link is None:
                self._queue.release(packet.id)
                continue
            verdict = link.judge(packet, now, self._rng)
            if verdict.suffered:
                self._counts[packet.key] = self._counts.get(packet.key, 0) + 1
            self._serial += 1
            heapq.heappush(self._waiting, (verdict.due, self._serial, packet, verdict.payload))

    def let_go(self, now: float) -> float | None:
        """Release the packets that are due; returns the seconds until the next one's turn, None when none waits."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, packet, payload = heapq.heappop(self._waiting)
            if self._queue is not None:
                self._queue.release(packet.id, payload)
        return self._waiting[0][0] - now if self._waiting else None

    def end(self) -> None:
        """Undo everything."""
        self._release_all()
        self._rules.clear()

    def _release_all(self) -> None:
        waiting, self._waiting = sorted(self._waiting), []
        for _, _, packet, payload in waiting:
            if self._queue is not None:
                self._queue.release(packet.id, payload)


def serve(program: Program, source: int, answer: Callable[[str], None]) -> None:
    """Carry out the orders that arrive on a file descriptor until its end."""
    selector = selectors.SelectSelector()  # Its time limits are finer than milliseconds.
    selector.register(source, selectors.EVENT_READ)
    watched, text = False, b""
    while True:
        ready = selector.select(program.let_go(time.monotonic()))
        program.take(time.monotonic())
        if not any(key.fd == source for key, _ in ready):
            continue
        chunk = os.read(source, 1 << 16)
        if not chunk:
            return
        *lines, text = (text + chunk).split(b"\n")
        for line in lines:
            answer(json.dumps(program.carry_out(json.loads(line))))
        if program.queue_socket is not None and not watched:
            selector.register(program.queue_socket, selectors.EVENT_READ)
            watched = True


def main() -> None:
    """Serve standard input and undo everything at its end, even after a signal."""
    program = Program(KernelRules(), KernelQueue, random.Random())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        serve(program, sys.stdin.fileno(), lambda line: print(line, flush=True))
    finally:
        program.end()


if __name__ == "__main__":
    main()
