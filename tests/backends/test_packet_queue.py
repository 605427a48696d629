"""Decisions about packets that need no kernel: what waits how long, which rules, whose packets, what netem can do."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from harness.backends import packet_queue, packets
from harness.backends.base import Output
from harness.backends.netem import NodeShaping
from harness.backends.packet_queue import (
    ARRIVING,
    LEAVING,
    DegradedLink,
    KernelRules,
    Packet,
    Program,
    parse_counts,
    table_script,
)
from harness.backends.packets import PacketBackend, PacketProgram, split
from stormproof.contracts.backend import LinkConditions
from stormproof.errors import BackendError

PEER = "10.9.0.12"
KEY = (ARRIVING, PEER)


def packet(ident: int = 1, length: int = 100, key: tuple[str, str] = KEY) -> Packet:
    return Packet(ident, key, bytes([0x45, 0]) + struct.pack(">H", length) + bytes(16) + b"payload of TCP")


class FakeRules(KernelRules):
    """Rules of a kernel that has all that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[packet_queue.State] = []
        self.counted: dict[packet_queue.Key, int] = {}
        self.broken = ""

    def set(self, state: packet_queue.State) -> None:
        if self.broken:
            raise OSError(self.broken)
        self.states.append(state)
        self.counted = {}

    def counts(self) -> dict[packet_queue.Key, int]:
        return self.counted

    def clear(self) -> None:
        self.states.append({})


class FakeQueue:
    """A queue into which a test puts packets."""

    def __init__(self) -> None:
        self.incoming: list[Packet] = []
        self.released: list[tuple[int, bytes | None]] = []
        self.whole = False

    def copy(self, whole: bool) -> None:
        self.whole = whole

    def receive(self) -> list[Packet]:
        found, self.incoming = self.incoming, []
        return found

    def release(self, ident: int, payload: bytes | None = None) -> None:
        self.released.append((ident, payload))


def program() -> tuple[Program, FakeRules, FakeQueue]:
    rules, queue = FakeRules(), FakeQueue()
    return Program(rules, lambda: queue, random.Random(1)), rules, queue  # type: ignore[arg-type, return-value]


def judged(condition: Mapping[str, float], count: int = 200, gap: float = 0.0) -> list[packet_queue.PacketVerdict]:
    link, rng = DegradedLink(condition), random.Random(7)
    return [link.judge(packet(n), n * gap, rng) for n in range(count)]


def test_each_condition_holds_a_packet_as_long_as_it_says() -> None:
    assert all(verdict.due == 0.2 and verdict.suffered for verdict in judged({"delay": 0.2}))
    jittered = [verdict.due for verdict in judged({"delay": 0.2, "jitter": 0.1})]
    assert 0.1 <= min(jittered) < 0.15 and 0.25 < max(jittered) <= 0.3
    assert min(verdict.due for verdict in judged({"jitter": 0.1})) == 0.0, "none goes on before it came"
    turns = [verdict.due for verdict in judged({"rate": 1000.0}, count=3)]
    assert turns == pytest.approx([0.1, 0.2, 0.3]), "each waits for those before it"
    assert judged({"rate": 1000.0}, count=2, gap=5.0)[1].due == pytest.approx(5.1), "a link that is free waits for none"
    reordered = judged({"reorder": 0.3, "delay": 0.02})
    assert {round(verdict.due, 3) for verdict in reordered} == {0.02, 0.04}
    held = judged({"reorder": 0.3})
    assert 30 < sum(verdict.suffered for verdict in held) < 90
    assert all(verdict.suffered == (verdict.due >= packet_queue.REORDER_SECONDS) for verdict in held)


def test_a_damaged_packet_has_one_wrong_bit_behind_its_header() -> None:
    whole = packet().data
    for seed in range(100):
        damaged = packet_queue.damaged(whole, random.Random(seed))
        assert damaged[:20] == whole[:20], "else it would not come, or from somebody else"
        assert sum((a ^ b).bit_count() for a, b in zip(damaged, whole, strict=True)) == 1
    assert packet_queue.damaged(whole[:20], random.Random(1)) == whole[:20]


def test_the_rules_name_each_link_and_each_direction() -> None:
    state = packet_queue.parse_state({
        ARRIVING: {PEER: {"loss": 0.25, "delay": 0.0}}, LEAVING: {"10.9.0.131": {"duplicate": 1.0, "rate": 50.0}},
    })  # fmt: skip
    assert state[KEY] == {"loss": 0.25}, "what is nothing is left out"
    script = table_script(state, queue=True)
    assert f'ip saddr {PEER} numgen random mod 1000000 < 250000 counter drop comment "arriving {PEER}"' in script
    assert 'ip daddr 10.9.0.131  counter dup to 10.9.0.131 comment "leaving 10.9.0.131"' in script, "each one"
    assert script.count("queue num 5757 bypass") == 1 and "ip daddr 10.9.0.131 queue" in script
    assert "queue" not in table_script(state, queue=False).replace("stormproof", "")
    assert packet_queue.iptables_script(state).count("-j NFQUEUE") == 1
    assert "-A stormproof-out -d 10.9.0.131 " in packet_queue.iptables_script(state)
    assert table_script({}, queue=True).splitlines() == ["add table ip stormproof_packets",
                                                         "delete table ip stormproof_packets"]


def test_counters_of_a_link_are_added_up() -> None:
    text = f"""
    ip saddr {PEER} numgen random mod 1000000 < 5 counter packets 3 bytes 180 drop comment "arriving {PEER}"
    ip saddr {PEER} counter packets 4 bytes 1 dup to 10.9.0.11 comment "arriving {PEER}"
    ip daddr 10.9.0.1 counter packets 9 bytes 1 drop comment "leaving 10.9.0.1"
    ip saddr 10.9.0.7 counter packets 100 bytes 1 queue num 5757 bypass
    """
    assert parse_counts(text) == {KEY: 7, (LEAVING, "10.9.0.1"): 9}


def test_a_program_holds_counts_and_lets_go() -> None:
    held, rules, queue = program()
    assert held.carry_out({ARRIVING: {PEER: {"delay": 0.5}}}) == {ARRIVING: {PEER: 0}, LEAVING: {}}
    queue.incoming = [packet(1), packet(2, key=(ARRIVING, "10.9.0.99"))]
    held.take(10.0)
    assert queue.released == [(2, None)], "whose link does not suffer goes on at once"
    assert held.let_go(10.1) == pytest.approx(0.4)
    assert held.let_go(10.5) is None and queue.released[1:] == [(1, None)]
    rules.counted = {KEY: 5}
    assert held.carry_out({"counts": True}) == {ARRIVING: {PEER: 6}, LEAVING: {}}
    queue.incoming = [packet(3)]
    held.take(11.0)
    assert held.carry_out({ARRIVING: {PEER: {"corrupt": 1.0}}})[ARRIVING] == {PEER: 7}, "its counters go on"
    assert queue.released[2:] == [(3, None)], "the kernel would drop what waits when rules are replaced"
    assert queue.whole
    queue.incoming = [packet(4)]
    held.take(12.0)
    held.let_go(12.0)
    assert queue.released[3][1] not in (None, packet(4).data)
    assert held.carry_out({}) == {ARRIVING: {}, LEAVING: {}}
    assert rules.states[-1] == {}


def test_the_end_undoes_everything() -> None:
    held, rules, queue = program()
    held.carry_out({ARRIVING: {PEER: {"delay": 5.0}}})
    queue.incoming = [packet(1), packet(2)]
    held.take(1.0)
    held.end()
    assert [ident for ident, _ in queue.released] == [1, 2] and rules.states[-1] == {}


def test_what_the_kernel_refuses_is_told() -> None:
    held, rules, _ = program()
    rules.broken = "nft: no such thing"
    assert held.carry_out({ARRIVING: {PEER: {"loss": 0.1}}}) == {"error": "nft: no such thing"}


def test_messages_of_the_kernel_are_read() -> None:
    data = bytes([0x45]) + bytes(11) + bytes([10, 9, 0, 12]) + bytes([10, 9, 0, 11])

    def message(hook: int) -> bytes:
        body = bytes(4) + struct.pack("=HH", 11, 1) + struct.pack(">IHB", 77, 0x0800, hook) + b"\0"
        body += struct.pack("=HH", 4 + len(data), 10) + data
        return struct.pack("=IHHII", 16 + len(body), 3 << 8, 0, 0, 0) + body

    (came,), (went,) = (packet_queue._packets(message(hook)) for hook in (1, 3))
    assert (came.id, came.key, came.data) == (77, KEY, data)
    assert went.key == (LEAVING, "10.9.0.11")
    assert packet_queue._packets(b"\0" * 40) == []


def test_a_link_suffers_at_one_of_its_ends() -> None:
    bad, worse = LinkConditions(loss=0.1), LinkConditions(delay=1.0)
    found = split(["n1", "n2"], {("n1", "n2"): bad, ("n2", "c1"): worse, ("c1", "n1"): bad, ("c1", "c2"): bad,
                                 ("n1@back", "n2@back"): worse})  # fmt: skip
    assert found == {"n1": NodeShaping({}, {"c1": bad}),
                     "n2": NodeShaping({"c1": worse}, {"n1": bad, "n1@back": worse})}  # fmt: skip


class Channel:
    """A shell that becomes a program with these answers."""

    def __init__(self, *answers: str) -> None:
        self.answers = [answer.encode() for answer in answers]
        self.sent: list[bytes] = []
        self.destroyed = False

    async def read(self) -> bytes:
        return self.answers.pop(0) if self.answers else b""

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def destroy(self) -> None:
        self.destroyed = True


@pytest.mark.parametrize(("answers", "words"), [
    (["ready\n", '{"error": "no queue"}\n'], "n1: can't make its links suffer: no queue"),
    (["sh: python3: not found\n"], "n1: its program for packets failed: sh: python3: not found"),
    ([], "n1: its program for packets failed: it ended"),
])
def test_a_program_that_fails_says_why(answers: list[str], words: str) -> None:
    channel = Channel(*answers)

    async def connect() -> Any:
        return channel

    failing = PacketProgram("n1", connect, "python3 it.py")
    with pytest.raises(BackendError) as caught:
        asyncio.run(failing.ask({}))
    assert str(caught.value) == words
    assert channel.destroyed and not failing.alive and channel.sent[0] == b"exec python3 it.py\n"


class Nodes(PacketBackend):
    """Two nodes whose kernels have what a test says; what they were told is kept."""

    def __init__(self, kernels: Mapping[str, str]) -> None:
        super().__init__()
        self._addresses = {"n1": "10.9.0.11", "n2": PEER, "c1": "10.9.0.131", "n1@back": "10.8.0.11"}
        self._control = dict.fromkeys(("n1", "n2"))  # type: ignore[assignment]
        self.kernels = kernels
        self.scripts: list[tuple[str, str]] = []
        self.orders: list[tuple[str, Any]] = []

    async def _steer(self, node: str, script: str, failure: str, timeout: float = 1.0) -> Output:
        text = self.kernels[node] if script == packets._NETEM else "2: eth7    inet" if "address show" in script else ""
        if script != packets._NETEM and "address show" not in script:
            self.scripts.append((node, script))
        return Output(0, text.encode(), len(text))

    async def upload(self, node: str, content: bytes, path: str) -> None:
        pass

    def node_dir(self, node: str) -> str:
        return f"/{node}"

    def python(self, node: str) -> str:
        return "python3"

    async def _connect(self, node: str) -> Any:
        raise AssertionError("programs are faked")

    async def provision(self, *_: Any) -> None:
        raise AssertionError

    async def release(self) -> None:
        raise AssertionError

    def _program(self, node: str) -> Any:
        orders = self.orders

        class Told:
            alive = True

            async def ask(self, order: Any) -> Any:
                orders.append((node, json.loads(json.dumps(order))))
                return {ARRIVING: {PEER: 3}, LEAVING: {}}

        return Told()


@pytest.mark.parametrize(("kernels", "link", "condition", "emulated"), [
    ({"n1": "netem", "n2": "netem ifb"}, ("n1", "n2"), LinkConditions(loss=0.1), True),
    ({"n1": "netem", "n2": ""}, ("n1", "n2"), LinkConditions(loss=0.1), False),
    ({"n1": "netem", "n2": "netem"}, ("n1", "n2"), LinkConditions(reset=0.1), False),
    ({"n1": "netem", "n2": "netem"}, ("c1", "n2"), LinkConditions(loss=0.1), False),
    ({"n1": "netem", "n2": "netem ifb"}, ("c1", "n2"), LinkConditions(loss=0.1), True),
    ({"n1": "netem", "n2": "netem"}, ("n1@back", "n2"), LinkConditions(loss=0.1), False),
])
def test_netem_is_used_where_all_nodes_can_do_all_of_it(
    kernels: Mapping[str, str], link: tuple[str, str], condition: LinkConditions, emulated: bool
) -> None:
    nodes = Nodes(kernels)
    asyncio.run(nodes.set_conditions({link: condition}))
    assert bool(nodes.scripts) == emulated and bool(nodes.orders) != emulated
    assert all("dev eth7" in script for _, script in nodes.scripts)
    asyncio.run(nodes.set_conditions({}))
    if emulated:
        assert "netem" not in nodes.scripts[-1][1].partition("set -e")[2], "only heals"
    else:
        assert nodes.orders[-1][1] == {ARRIVING: {}, LEAVING: {}}
