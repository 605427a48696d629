"""How long an honest client waits while others attack its broker: ``python tests/broker/under_attack.py --help``.

The broker runs in a process of its own, the attackers in another one (with less right to the processor: elsewhere they
would have their own), the honest client in this one. It sends a message every 20 ms and waits for the receipt; once a
second another one logs in. Figures are in milliseconds; memory is the most that the broker ever held.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from broker_process import ROOT, BrokerProcess, RawClient

MIB = 1 << 20
BIG = 4 * MIB
LOST = (ConnectionError, OSError, AssertionError, TimeoutError, asyncio.IncompleteReadError)
QUIET = "nothing"


@dataclass
class Measured:
    """Of one attack: what the honest client had to wait for its receipts and its logins, and the broker's memory."""

    attack: str
    receipts: list[float] = field(default_factory=list)
    logins: list[float] = field(default_factory=list)
    memory: int = 0
    refused: int = 0

    def line(self) -> str:
        half, most, worst = at(self.receipts, 0.5), at(self.receipts, 0.99), max(self.receipts, default=0.0)
        return (f"| {self.attack} | {len(self.receipts)} | {half:.1f} | {most:.1f} | {worst:.0f} "
                f"| {at(self.logins, 0.99):.1f} | {self.refused} | {self.memory // MIB} |")


def at(values: list[float], share: float) -> float:
    """The value that so many are not above."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


# Attackers: each goes on for ever, and comes back when it is thrown out.

Attack = Callable[[int], Awaitable[None]]


async def again(port: int, once: Attack, pause: float = 0.05) -> None:
    while True:
        with suppress(*LOST):
            await once(port)
        await asyncio.sleep(pause)


async def hold(client: RawClient) -> None:
    """Stay, and read nothing but the end."""
    while await client.reader.read(1 << 16):
        pass


async def big_connect(port: int) -> None:
    client = await RawClient.dial(port)
    client.writer.write(b"CONNECT\naccept-version:1.2\ncontent-length:%d\n\n" % BIG)
    for _ in range(BIG // 65536 - 1):
        client.writer.write(b"x" * 65536)
        await client.writer.drain()
    await hold(client)


async def half_open(port: int) -> None:
    client = await RawClient.dial(port)
    client.writer.write(b"CONNECT\naccept-version:1.2\n")
    await hold(client)


async def half_body(port: int) -> None:
    client = await RawClient.connect(port)
    client.writer.write(b"SEND\ndestination:/queue/half\ncontent-length:%d\n\n" % BIG)
    for _ in range(BIG // 65536 - 1):
        client.writer.write(b"x" * 65536)
        await client.writer.drain()
    await hold(client)


async def subscribed(port: int, count: int = 1000, topic: str = "") -> RawClient:
    client = await RawClient.connect(port)
    topic = topic or f"/topic/fan{port}-{id(client)}"
    for number in range(count):
        client.send("SUBSCRIBE", {"id": str(number), "destination": topic, "ack": "client"})
    await client.confirmed("SEND", {"destination": "/topic/none"})
    client.topic = topic  # type: ignore[attr-defined]
    return client


async def fan_out(port: int) -> None:
    client = await subscribed(port)
    client.send("SEND", {"destination": client.topic}, b"x" * BIG)  # type: ignore[attr-defined]
    await client.writer.drain()
    await asyncio.sleep(5)
    client.abort()


async def fan_out_read(port: int) -> None:
    client = await subscribed(port)
    client.send("SEND", {"destination": client.topic}, b"x" * BIG)  # type: ignore[attr-defined]
    for _ in range(100):
        message = await client.expect("MESSAGE")
        client.send("ACK", {"id": message.headers["ack"]})
    client.abort()


async def small_fan_out(port: int) -> None:
    client = await subscribed(port)
    reading = asyncio.create_task(hold(client))
    with suppress(*LOST):
        for _ in range(300):
            client.send("SEND", {"destination": client.topic}, b"x")  # type: ignore[attr-defined]
            await client.writer.drain()
    await asyncio.sleep(2)
    reading.cancel()
    client.abort()


async def wide_fan_out(port: int) -> None:
    client = await subscribed(port, 250, f"/topic/wide{port}")
    reading = asyncio.create_task(hold(client))
    with suppress(*LOST):
        for _ in range(100):
            client.send("SEND", {"destination": client.topic}, b"x")  # type: ignore[attr-defined]
            await client.writer.drain()
            await asyncio.sleep(0.1)
    reading.cancel()
    client.abort()


async def give_back(port: int) -> None:
    client = await RawClient.connect(port)
    queue, count = f"/queue/back{id(client)}", 2000
    for _ in range(count):
        client.send("SEND", {"destination": queue})
    client.send("SUBSCRIBE", {"id": "s", "destination": queue, "ack": "client", "x-prefetch": str(count)})
    while True:
        for _ in range(count):
            last = await client.expect("MESSAGE")
        client.send("NACK", {"id": last.headers["ack"]})


async def open_transaction(port: int) -> None:
    client = await RawClient.connect(port)
    client.send("BEGIN", {"transaction": "t"})
    for _ in range(64 * MIB // BIG):
        await client.confirmed("SEND", {"destination": "/queue/tx", "transaction": "t"}, b"x" * BIG)
    await hold(client)


async def deep_json(port: int) -> None:
    client = await RawClient.connect(port, x_admin="true")
    client.send("SEND", {"destination": "/admin/add-replica"}, b"[" * 100_000)
    await client.expect("ERROR")
    client.abort()


async def flood(port: int) -> None:
    client = await RawClient.connect(port)
    frame = b"SEND\ndestination:/topic/none\n\nx\0" * 500
    while True:
        client.writer.write(frame)
        await client.writer.drain()


async def big_flood(port: int) -> None:
    client = await RawClient.connect(port)
    while True:
        client.send("SEND", {"destination": "/topic/none"}, b"x" * BIG)
        await client.writer.drain()


ATTACKS: dict[str, tuple[Attack, int, str]] = {
    QUIET: (half_open, 0, "no attack"),
    "big-connect": (big_connect, 300, "300 CONNECT frames with bodies of 4 MB"),
    "half-open": (half_open, 3000, "3,000 connections that never finish their login"),
    "half-body": (half_body, 100, "100 logged-in connections, each with 4 MB of a frame that never ends"),
    "fan-out": (fan_out, 2, "one message of 4 MB to 1,000 subscriptions of one connection, which reads nothing"),
    "fan-out-read": (fan_out_read, 2, "the same, read and acknowledged"),
    "small-fan-out": (small_fan_out, 1, "300 small messages at once to 1,000 subscriptions of one connection"),
    "wide-fan-out": (wide_fan_out, 8, "small messages, each to 250 subscriptions of each of 8 connections"),
    "give-back": (give_back, 3, "NACK of 2,000 messages at once, over and over, by 3 connections"),
    "open-transaction": (open_transaction, 12, "12 open transactions of 64 MB each"),
    "deep-json": (deep_json, 4, "add-replica with 100,000 opening brackets"),
    "flood": (flood, 20, "20 connections that send small frames as fast as they can"),
    "big-flood": (big_flood, 10, "10 connections that send frames of 4 MB as fast as they can"),
}


async def attack(name: str, port: int) -> None:
    """Go on until the process is ended."""
    once, count, _ = ATTACKS[name]
    await asyncio.gather(*(again(port, once) for _ in range(count)))


# The honest client.


async def measure(name: str, port: int, seconds: float) -> Measured:
    found = Measured(name)
    client = await RawClient.connect(port)
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/honest", "ack": "auto"})
    end = time.monotonic() + seconds
    logins = asyncio.create_task(log_in(found, port, end))
    number = 0
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        client.send("SEND", {"destination": "/queue/honest", "receipt": str(number)}, b"hello")
        seen: set[str] = set()
        while seen != {"RECEIPT", "MESSAGE"}:
            frame = await client.frame()
            assert frame is not None and frame.command in ("RECEIPT", "MESSAGE"), frame
            if frame.command == "RECEIPT":
                found.receipts.append((time.monotonic() - began) * 1000)
            seen.add(frame.command)
        await asyncio.sleep(max(0.0, 0.02 - (time.monotonic() - began)))
    await logins
    client.abort()
    return found


async def log_in(found: Measured, port: int, end: float) -> None:
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            client = await RawClient.connect(port)
            found.logins.append((time.monotonic() - began) * 1000)
            client.abort()
        except LOST:
            found.refused += 1
        await asyncio.sleep(1)


def most_memory(broker: BrokerProcess) -> int:
    """Bytes that the broker's process held at most."""
    assert broker._process is not None
    for line in Path(f"/proc/{broker._process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much memory a process has held")


def run(name: str, seconds: float, folder: Path, root: Path = ROOT) -> Measured:
    """One attack on a fresh broker with its defaults, whose code is that of ``root``."""
    import broker_process

    broker_process.ROOT = root
    folder.mkdir(parents=True)
    broker = BrokerProcess(folder).start()
    attackers = subprocess.Popen([sys.executable, __file__, "--attack", name, str(broker.port)], preexec_fn=_give_way)
    try:
        time.sleep(1)
        try:
            found = asyncio.run(measure(name, broker.port, seconds))
        except LOST as error:
            found = Measured(f"{name}: the honest client was not served ({type(error).__name__})")
        found.memory = most_memory(broker) if broker.alive() else 0
        return found
    finally:
        attackers.kill()
        attackers.wait()
        if broker.alive():
            broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _give_way() -> None:
    os.nice(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--root", type=Path, default=ROOT, help="whose code the broker runs")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where brokers keep their data")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        name, port = given.attack
        asyncio.run(attack(name, int(port)))
        return
    print("| attack | receipts | p50 | p99 | worst | logins p99 | refused | MiB |", flush=True)
    for name in given.names:
        with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
            print(run(name, given.seconds, Path(scratch) / "broker", given.root).line(), flush=True)


if __name__ == "__main__":
    main()
