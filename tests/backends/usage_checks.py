"""What a program uses, as every real backend tells it; run by backend_child.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncGenerator, Callable

from stormproof.contracts.backend import Backend, Metered, Shells, Usage
from stormproof.contracts.cluster import MAIN
from stormproof.errors import BackendError

INTERVAL = 0.2
ON_DISK = ("ext2/ext3", "xfs", "btrfs")
"""What stat(1) calls file systems that are on disks."""
CPU, MEMORY, STORED, SENT = 0.5, 48 << 20, 3 << 20, 300_000

# Works for half a second of CPU, half of it in a child that ends, and keeps, stores and sends something.
BUSY = f"""
import os, socket, subprocess, sys, time
def work(seconds):
    while time.process_time() < seconds:
        pass
if sys.argv[1:] == ["child"]:
    work({CPU / 2})
    sys.exit()
kept = b"x" * {MEMORY}
os.makedirs(sys.argv[1], exist_ok=True)
with open(sys.argv[1] + "/stored", "wb") as file:
    file.write(os.urandom({STORED}))
    os.fsync(file.fileno())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for _ in range({SENT // 1000}):
        sender.sendto(bytes(1000), (sys.argv[2], 9))
subprocess.run([sys.executable, __file__, "child"], check=True)
work({CPU / 2})
time.sleep(1000)
"""


async def until(told: AsyncGenerator[Usage, None], wanted: Callable[[Usage], bool]) -> Usage:
    """The first sample that is as wanted; the test's own time limit ends it."""
    last = None
    for _ in range(300):
        last = await anext(told)
        if wanted(last):
            return last
    raise AssertionError(f"it never came; at last: {last}")


async def check_usage(backend: Backend) -> None:
    """While a program works, is paused, is dead, and runs anew: counters go on, what it holds is as it is now."""
    assert isinstance(backend, Metered) and isinstance(backend, Shells)
    base = backend.node_dir("n1")
    await backend.upload("n1", BUSY.encode(), f"{base}/code/busy.py")
    argv = [backend.python("n1"), f"{base}/code/busy.py", backend.data_dir("n1"), backend.address("n2")]
    log = f"{base}/logs/broker.log"
    async with (contextlib.aclosing(backend.usage("n1", INTERVAL)) as told,
                contextlib.aclosing(backend.usage("n2", INTERVAL)) as other):  # fmt: skip
        first = await anext(told)
        assert (first.cpu, first.memory, first.processes, first.sent) == (0, 0, 0, 0), first
        assert (await anext(other)).received == 0
        await backend.start("n1", MAIN, argv, log)
        worked = await until(told, lambda each: each.cpu >= CPU * 0.9 and each.processes == 1)
        assert worked.cpu < CPU * 2, "the child that it waited for counts once"
        assert worked.memory >= MEMORY and worked.sent >= SENT, worked
        kind = await backend.exec("n1", f"stat -f -c %T {shlex.quote(backend.data_dir('n1'))}")
        if kind.output.strip() in ON_DISK:  # below an overlay there may be memory only
            assert worked.written is None or worked.written >= STORED, worked
        await until(told, lambda each: (each.disk or 0) >= STORED)
        await until(other, lambda each: each.received >= SENT and each.processes == 0)
        await backend.pause("n1", MAIN)
        await anext(told)
        paused = await anext(told)
        assert paused.memory >= MEMORY and paused.processes == 1, paused
        await backend.kill("n1", MAIN)
        dead = await until(told, lambda each: each.processes == 0)
        assert dead.memory == 0 and dead.cpu >= worked.cpu, dead
        await backend.start("n1", MAIN, argv, log)
        again = await until(told, lambda each: each.cpu >= dead.cpu + CPU * 0.9)
        assert again.sent >= 2 * SENT and (again.disk or 0) < 2 * STORED, again
    print(json.dumps({"sampling_s": again.sampling}))


async def check_usage_killed(backend: Backend) -> None:
    """What measures is killed: that is an error of the measuring, and it can begin anew."""
    assert isinstance(backend, Metered) and isinstance(backend, Shells)
    for _ in range(2):
        async with contextlib.aclosing(backend.usage("n1", INTERVAL)) as told:
            await anext(told)
            pattern = "class DataFolde[r]"
            await backend.exec("n1", f"for p in /proc/[0-9]*; do grep -qa '{pattern}' $p/cmdline && "
                                     "kill -9 ${p#/proc/}; done; :")  # fmt: skip
            try:
                async with asyncio.timeout(60):
                    while True:
                        await anext(told)
            except BackendError as error:
                assert "n1" in str(error) and "\n" not in str(error), str(error)
            else:
                raise AssertionError("it went on")
