"""Checks of clocks that can be set, which `backend_child.py` runs on a provisioned backend."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import Any

from stormproof.contracts.backend import Backend, Clocks, Shells
from stormproof.contracts.cluster import MAIN
from stormproof.errors import BackendError

# Prints its time of day, and how long it has waited, by timers of an event loop.
PROGRAM = """
import asyncio, json, time
async def main():
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        print(json.dumps([time.time(), time.monotonic() - before]), flush=True)
asyncio.run(main())
"""
QUICK, PATIENCE = 0.25, 200


async def check_clock(backend: Backend) -> None:
    """A running program sees its clock jump and drift and be right again; its timers are as ever, and so is n2."""
    assert isinstance(backend, Clocks) and isinstance(backend, Shells)
    for node in ("n1", "n2"):
        await start_program(backend, node)
    for offset in (100.0, -250.5):
        await backend.set_clock("n1", offset, 1.0)
        await becomes(lambda: ahead(backend, "n1"), lambda seconds, wanted=offset: abs(seconds - wanted) < QUICK)
        assert abs(await backend.clock("n1") - time.time() - offset) < QUICK
        assert abs(await ahead(backend, "n2")) < QUICK and abs(await backend.clock("n2") - time.time()) < QUICK
    await backend.set_clock("n1", 0.0, 1.5)
    await becomes(lambda: ahead(backend, "n1"), lambda seconds: 0.4 < seconds < 2)
    await becomes(lambda: ahead(backend, "n1"), lambda seconds: 1.5 < seconds < 4)
    await backend.set_clock("n1", 0.0, 1.0)
    await becomes(lambda: ahead(backend, "n1"), lambda seconds: abs(seconds) < QUICK)
    waits = [seconds for _, seconds in await lines(backend, "n1")]
    # A machine that is busy makes some of them longer, none shorter.
    assert min(waits) >= 0.0195 and sorted(waits)[len(waits) // 2] < 0.1, (min(waits), max(waits))
    await backend.kill("n1", MAIN)
    await backend.set_clock("n1", 33.0, 1.0)
    await start_program(backend, "n1")
    await becomes(lambda: ahead(backend, "n1"), lambda seconds: abs(seconds - 33) < QUICK)
    await backend.set_clock("n1", 0.0, 1.0)


async def check_clock_that_does_not_show(backend: Backend) -> None:
    """A program that has not loaded the library, or a Go program, is refused with the reason."""
    assert isinstance(backend, Clocks) and isinstance(backend, Shells)
    base = backend.node_dir("n1")
    await backend.start("n1", MAIN, ["env", "-u", "LD_PRELOAD", "sleep", "1001"], f"{base}/log")
    await becomes(lambda: runs(backend, "n1", "sleep"), bool)  # env has the library until it gives way to it
    await refused(backend, "the broker has not loaded libfaketime")
    await backend.kill("n1", MAIN)
    copy = shlex.quote(f"{base}/go")
    await backend.exec("n1", f"cp $(command -v sleep) {copy} && printf '\\377 Go buildinf:' >> {copy}")
    await backend.start("n1", MAIN, [f"{base}/go", "1001"], f"{base}/log")
    await becomes(lambda: runs(backend, "n1", "go"), bool)
    await refused(backend, "the broker is a Go program")
    await backend.set_clock("n1", 0.0, 1.0)


async def runs(backend: Any, node: str, name: str) -> float:
    """1 when its broker is a program of that name already, 0 before."""
    folder = shlex.quote(backend.node_dir(node))
    script = f"read -r pid _ < {folder}/{MAIN}.pid && cat /proc/$pid/comm"
    return float((await backend.exec(node, script)).output.strip() == name)


async def refused(backend: Any, reason: str) -> None:
    try:
        await backend.set_clock("n1", 5.0, 1.0)
    except BackendError as error:
        assert reason in str(error) and "n1" in str(error), error
        return
    raise AssertionError("it was not refused")


async def start_program(backend: Any, node: str) -> None:
    base = backend.node_dir(node)
    await backend.upload(node, PROGRAM.encode(), f"{base}/program.py")
    await backend.start(node, MAIN, [backend.python(node), f"{base}/program.py"], f"{base}/times")


async def lines(backend: Any, node: str) -> list[tuple[float, float]]:
    """What the program has printed: its time of day, how long it had waited."""
    text = (await backend.exec(node, f"cat {shlex.quote(backend.node_dir(node))}/times")).output
    return [(float(moment), float(waited)) for moment, waited in map(json.loads, text.splitlines())]


async def ahead(backend: Any, node: str) -> float:
    """By how much the clock that a program has last told is ahead of this one, about."""
    seen = len(await lines(backend, node))
    for _ in range(PATIENCE):
        found = await lines(backend, node)
        if len(found) > seen:
            return found[-1][0] - time.time()
        await asyncio.sleep(0.02)
    raise AssertionError(f"{node}: the program tells nothing any more")


async def becomes(read: Callable[[], Awaitable[float]], wanted: Callable[[float], bool]) -> None:
    for _ in range(PATIENCE):
        if wanted(await read()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(await read())
