"""beanstalkd 1.12 delivers a body of zeros that nobody sent, if it is killed between two writes of a job to its log."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "beanstalkd.py"
MISSING = [f"apt-get install {program}" for program in ("beanstalkd", "strace") if not shutil.which(program)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=", ".join(MISSING))

LOG_BYTES, PAGE_BYTES = 8192, 4096
WRITES_BEFORE = LOG_BYTES // PAGE_BYTES + 1
"""It fills its log with zeros, page by page, and then writes the log's version."""


@pytest.mark.parametrize(("killed_at", "body"), [(3, None), (4, bytes(5)), (None, b"0/123")])
def test_a_job_whose_body_is_not_written(killed_at: int | None, body: bytes | None, tmp_path: Path) -> None:
    """The client of the example passes on what the server sends. The test kills it at a write of the first job."""
    inject = f"inject=write:signal=SIGKILL:when={WRITES_BEFORE + (killed_at or 0)}"
    traced = ["strace", "-qq", "-o", "/dev/null", "-P", str(tmp_path / "binlog.1"), "-e", inject]
    with server(tmp_path, traced if killed_at else []) as port:
        if killed_at is None:
            asyncio.run(within(port, send=b"0/123"))
        else:
            with pytest.raises((OSError, EOFError)):
                asyncio.run(within(port, send=b"0/123"))
    with server(tmp_path, []) as port:
        assert asyncio.run(within(port)) == body


@contextmanager
def server(folder: Path, tracer: Sequence[str]) -> Iterator[int]:
    """A server on a free port of this machine, which has ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*tracer, "beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "0",
                                "-s", str(LOG_BYTES)])  # fmt: skip
    try:
        yield int(port)
    finally:
        process.terminate()
        process.wait()


async def within(port: int, send: bytes | None = None) -> bytes | None:
    """Send a message by the example's client, or take one and return its body."""
    specification = importlib.util.spec_from_file_location("beanstalkd_example", EXAMPLE)
    assert specification is not None and specification.loader is not None
    example: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    connection = example.Connection()
    async with asyncio.timeout(60):
        while True:
            try:
                await connection.connect("127.0.0.1", port, "127.0.0.1")
                break
            except ConnectionRefusedError:  # it does not listen yet
                await asyncio.sleep(0.1)
        try:
            if send is not None:
                await connection.send("q0", send)
                return None
            delivery = await connection.take("q0", 1)
            return None if delivery is None else delivery.body
        finally:
            await connection.close()
