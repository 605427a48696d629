"""Operations per second of the interpreter with a client that does nothing and a real journal."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

from harness.run.interpreter import Interpreter, NoClient
from stormproof import generator as gen
from stormproof.generator import Generator
from stormproof.history.journal import JournalWriter
from stormproof.operation import INVOKE, Op
from stormproof.test import Test


def workload(operations: int, seed: int) -> Generator:
    """Return a generator like that of a real workload: a mix of two kinds of operations, limited, on the clients."""
    enqueue = gen.indexed(lambda i: Op(INVOKE, "enqueue", (0, i), 0))
    dequeue = gen.repeat(Op(INVOKE, "dequeue", None, 0))
    return gen.clients(gen.limit(operations, gen.mix([enqueue, dequeue], random.Random(seed))))


def operations_per_second(operations: int = 100_000, concurrency: int = 20) -> float:
    """Run that number of operations, with a journal in a temporary folder; returns complete operations a second."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = asyncio.run(_timed(operations, concurrency, Path(folder)))
    return operations / seconds


async def _timed(operations: int, concurrency: int, folder: Path) -> float:
    test = Test("none", "none", concurrency=concurrency)
    journal = JournalWriter(folder / "journal.bin", "bench")
    interpreter = Interpreter(test, lambda thread, process, host: NoClient(), NoClient(), journal)
    start = time.perf_counter()
    await interpreter.run(workload(operations, test.seed))
    await interpreter.close()
    journal.close()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(f"{operations_per_second():,.0f} operations/s with a no-op client and a real journal")
