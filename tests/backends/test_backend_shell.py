"""The protocol of the persistent shell, against real local shells and against streams made to be awkward."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends.shell import Output, Shell
from stormproof.errors import BackendError


class LocalChannel:
    """A shell on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> bytes:
        assert self.process.stdout
        return await self.process.stdout.read(4096)

    async def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def destroy(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Opener:
    """Opens shells and keeps them for a look."""

    def __init__(self) -> None:
        self.channels: list[LocalChannel] = []

    async def __call__(self) -> LocalChannel:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT)
        self.channels.append(LocalChannel(process))
        return self.channels[-1]


class ScriptedChannel:
    """Answers every command with ``output`` and status 5, in pieces of the given sizes."""

    def __init__(self, output: bytes, sizes: list[int]) -> None:
        self.output, self.sizes = output, sizes
        self.pending: list[bytes] = []

    async def read(self) -> bytes:
        return self.pending.pop(0) if self.pending else b""

    async def write(self, data: bytes) -> None:
        begin, end = (match.encode() for match in re.findall(r"'([0-9a-f]+ \d+ (?:begin|end))'", data.decode()))
        stream = b"stray\n" + begin[:9] + b"\n" + begin + b"\n" + self.output + b"\n" + end + b" 5\n"
        at = 0
        for size in [*self.sizes, len(stream)]:
            self.pending.append(stream[at : at + size])
            at += size
        self.pending = [piece for piece in self.pending if piece]

    async def destroy(self) -> None:
        self.pending = []


@settings(max_examples=200, deadline=None)
@given(output=st.binary(max_size=60), sizes=st.lists(st.integers(1, 40), max_size=20), limit=st.integers(0, 50))
def test_output_survives_any_splitting(output: bytes, sizes: list[int], limit: int) -> None:
    async def run() -> Output:
        async def connect() -> ScriptedChannel:
            return ScriptedChannel(output, sizes)

        return await Shell("n1", connect).run("whatever", 5, limit=limit)

    assert asyncio.run(run()) == Output(5, output[:limit], len(output))


async def test_one_shell_serves_many_commands() -> None:
    opener = Opener()
    shell = Shell("n1", opener)
    results = await asyncio.gather(*(shell.run(f"echo {i}; exit {i % 3}", 10) for i in range(50)))
    assert [(int(result.data), result.status) for result in results] == [(i, i % 3) for i in range(50)]
    assert len(opener.channels) == 1
    await shell.close()
    assert opener.channels[0].process.returncode is not None


async def test_dead_shell_is_replaced_before_a_command() -> None:
    opener = Opener()
    shell = Shell("n1", opener)
    await shell.run("true", 10)
    opener.channels[0].process.kill()
    await opener.channels[0].process.wait()
    assert (await shell.run("echo again", 10)).text == "again\n"
    assert len(opener.channels) == 2
    await shell.close()


async def test_command_is_not_repeated_when_its_shell_dies(tmp_path_factory: pytest.TempPathFactory) -> None:
    count = tmp_path_factory.mktemp("shell") / "count"
    shell = Shell("n1", Opener())
    with pytest.raises(BackendError, match="n1: the shell ended under"):
        await shell.run(f"echo x >> '{count}'; kill -9 $$", 10)
    assert count.read_text() == "x\n"
    await shell.close()


async def test_unread_payload_is_never_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    trap = tmp_path_factory.mktemp("shell") / "executed"
    shell = Shell("n1", Opener())
    payload = f"\ntouch '{trap}'\n".encode() * 10000
    refused = await shell.run("head -c 5 >/dev/null; echo no; exit 4", 10, payload=payload)
    assert (refused.status, refused.text) == (4, "no\n")
    assert (await shell.run("cat", 10)).text == "", "commands have no input"
    assert not trap.exists()
    await shell.close()


async def test_waiting_for_a_slow_command_counts() -> None:
    opener = Opener()
    shell = Shell("n1", opener)
    slow = asyncio.create_task(shell.run("sleep 2; echo slow", 30))
    await asyncio.sleep(0.05)
    with pytest.raises(BackendError, match=r"no answer within 0\.1 s to: echo fast"):
        await shell.run("echo fast", 0.1)
    assert (await slow).text == "slow\n", "who waits does not harm who runs"
    assert len(opener.channels) == 1
    await shell.close()


async def test_no_shell_to_be_had() -> None:
    async def connect() -> LocalChannel:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(BackendError, match=r"n1: .*nobody there"):
        await Shell("n1", connect).run("true", 5)


async def test_a_silent_shell_that_does_not_answer_is_replaced_before_its_next_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    count = tmp_path_factory.mktemp("shell") / "count"
    opener = Opener()
    shell = Shell("n1", opener, silence=0.0)
    assert (await shell.run("echo one", 10)).text == "one\n"
    assert (await shell.run("echo two", 10)).text == "two\n" and len(opener.channels) == 1, "it answered"
    opener.channels[0].process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr("harness.backends.shell._ANSWER_LIMIT", 0.2)
    assert (await shell.run(f"echo x >> '{count}'; echo three", 10)).text == "three\n" and len(opener.channels) == 2
    assert count.read_text() == "x\n", "the command went to the new one only"
    await shell.close()


def test_text_tells_what_is_missing() -> None:
    assert Output(0, b"abc", 10).text == "abc\n[7 more bytes of output were not kept]"
