"""Checks of links that suffer, which `backend_child.py` runs on a provisioned backend."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from harness.backends.packet_queue import TABLE
from harness.backends.packets import PacketBackend
from stormproof.contracts.backend import Backend, LinkConditions, PacketFaults, Shells
from stormproof.contracts.client_places import ClientPlaces
from stormproof.errors import BackendError

DISCARD = 9
ARRIVING, LEAVING = ("n1", "n2"), ("n2", "c1")
"""A link that is disturbed where it arrives, and one that is where it leaves."""

PASSES = {
    "delay": (LinkConditions(delay=0.4), 0.4),
    "jitter": (LinkConditions(delay=0.4, jitter=0.1), 0.3),
    "reorder": (LinkConditions(reorder=1.0, delay=0.2), 0.0),  # netem sends these at once, we hold them back
    "rate": (LinkConditions(rate=100.0), 0.3),
    "duplicate": (LinkConditions(duplicate=1.0), 0.0),
}
"""Conditions under which a packet arrives, and the least seconds that it takes then."""

LOSES = {"loss": LinkConditions(loss=1.0), "corrupt": LinkConditions(corrupt=1.0)}


async def ask_from_node(backend: Shells, address: str) -> float | None:
    """Seconds until a node's refusal was heard on n1; None when it was not."""
    attempt = shlex.quote(f"exec 3<>/dev/tcp/{address}/{DISCARD}")
    command = f"date +%s.%N; timeout 2 bash -c {attempt} 2>&1; date +%s.%N"
    lines = (await backend.exec("n1", command)).output.splitlines()
    return float(lines[-1]) - float(lines[0]) if "refused" in " ".join(lines) else None


async def ask_from_client(backend: Backend) -> float | None:
    """The same for n2, heard at c1."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(2):
            await _connect_from_client(backend)
    except ConnectionRefusedError:
        return time.monotonic() - began
    except TimeoutError:
        return None
    raise AssertionError("somebody listens there")


async def _connect_from_client(backend: Backend) -> None:
    if "STORMPROOF_TEST_PLACES" not in os.environ:
        await asyncio.open_connection(backend.address("n2"), DISCARD, local_addr=(backend.address("c1"), 0))
        return
    assert isinstance(backend, ClientPlaces)

    def there() -> None:
        backend.enter_place(backend.address("c1"))
        socket.create_connection((backend.address("n2"), DISCARD), 2)

    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, there)


async def check_packets(backend: Backend) -> None:
    """Each condition hits the packets of its links, each direction alone, and is counted; none is left when healed."""
    assert isinstance(backend, PacketFaults) and isinstance(backend, Shells)
    for name, (condition, least) in PASSES.items():
        await backend.set_conditions({})  # counters of links that go on suffering go on
        await backend.set_conditions({ARRIVING: condition, LEAVING: condition})
        heard = [await ask_from_node(backend, backend.address("n2")), await ask_from_client(backend)]
        assert all(seconds is not None and seconds >= least for seconds in heard), (name, heard)
        affected = await backend.affected_packets()
        assert affected.keys() == {ARRIVING, LEAVING} and all(affected.values()), (name, affected)
    await backend.set_conditions({})
    await backend.set_conditions({ARRIVING: LinkConditions(reset=1.0), LEAVING: LinkConditions(reset=1.0)})
    heard = [await ask_from_node(backend, backend.address("n2")), await ask_from_client(backend)]
    assert None not in heard
    affected = await backend.affected_packets()
    assert affected == {ARRIVING: 1, LEAVING: 0}, (affected, "nobody answers a reset by a reset")
    for name, condition in LOSES.items():
        for links in ((ARRIVING,), (LEAVING,)):
            await backend.set_conditions({})
            await backend.set_conditions(dict.fromkeys(links, condition))
            heard = [await ask_from_node(backend, backend.address("n2")), await ask_from_client(backend)]
            assert [seconds is None for seconds in heard] == [ARRIVING in links, LEAVING in links], (name, heard)
            affected = await backend.affected_packets()
            assert affected.keys() == set(links) and all(affected.values()), (name, affected)
    await backend.set_conditions({ARRIVING: LinkConditions(loss=1.0), ("n1", "n3"): LinkConditions(delay=0.1)})
    await backend.set_conditions({("n1", "n3"): LinkConditions(delay=0.1)})
    assert await ask_from_node(backend, backend.address("n2")) is not None, "what is not asked for is healed"
    assert await backend.affected_packets() == {("n1", "n3"): 0}, "no packet, no evidence"
    await backend.set_conditions({})
    assert await backend.affected_packets() == {}
    for node in ("n1", "n2", "n3"):
        assert (await backend.exec(node, f"nft list table {TABLE} 2>/dev/null | grep -c dport")).output == "0\n"
    try:
        await backend.set_conditions({("n1", "n9"): LinkConditions(loss=1.0)})
        raise AssertionError("there is no n9")
    except BackendError as error:
        assert "n9" in str(error)


async def let_suffer(backend: Backend) -> None:
    """What a killed harness leaves: a rule, and packets that are held."""
    assert isinstance(backend, PacketFaults)
    await backend.set_conditions({("n1", "n2"): LinkConditions(delay=0.2, loss=0.1)})


async def check_packets_in_short(backend: Backend) -> None:
    """A link loses and another delays; both are counted, and neither when healed."""
    assert isinstance(backend, PacketFaults) and isinstance(backend, Shells)
    await backend.set_conditions({ARRIVING: LinkConditions(delay=0.2), LEAVING: LinkConditions(loss=1.0)})
    heard = [await ask_from_node(backend, backend.address("n2")), await ask_from_client(backend)]
    assert heard[0] is not None and heard[0] >= 0.2 and heard[1] is None, heard
    affected = await backend.affected_packets()
    assert affected.keys() == {ARRIVING, LEAVING} and all(affected.values()), affected
    await backend.set_conditions({})
    assert await ask_from_client(backend) is not None and await backend.affected_packets() == {}


async def check_packets_program_killed(backend: Backend) -> None:
    """Packets pass when the program that held them is killed; that is no evidence, and the next fault finds another."""
    assert isinstance(backend, PacketBackend)

    async def none(node: str) -> frozenset[str]:
        return frozenset()

    backend._kernel = none  # type: ignore[method-assign]
    await backend.set_conditions({ARRIVING: LinkConditions(delay=1.5), LEAVING: LinkConditions(loss=1.0)})
    found = await backend.exec("n2", "grep -l packet_queue.py /proc/[0-9]*/cmdline 2>/dev/null; :")
    pids = [path.split("/")[2] for path in found.output.splitlines()]
    command = "for p in " + " ".join(pids) + "; do [ -e /proc/$p/root/proc ] && readlink /proc/$p/exe; done"
    programs = [pid for pid, exe in zip(pids, (await backend.exec("n2", command)).output.splitlines(), strict=False)
                if "python" in exe]  # fmt: skip
    assert programs, "a program holds packets"
    await backend.exec("n2", f"kill -9 {' '.join(programs)}")
    heard = await ask_from_node(backend, backend.address("n2"))
    assert heard is not None, "the kernel lets packets pass"
    assert await ask_from_client(backend) is None, "its rules are still there"
    assert await backend.affected_packets() == {ARRIVING: 0, LEAVING: 0}
    assert await ask_from_client(backend) is not None, "until somebody sees that it is dead"
    await backend.set_conditions({ARRIVING: LinkConditions(delay=0.4)})
    heard = await ask_from_node(backend, backend.address("n2"))
    assert heard is not None and heard >= 0.4
    assert (await backend.affected_packets())[ARRIVING] > 0
    await backend.set_conditions({})
