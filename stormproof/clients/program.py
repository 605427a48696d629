"""Programs that are clients: JSON lines on their standard input and output (docs/clients.md).

The first line of a program announces what it can do. Then each request of the harness has an ``id``, and the program
answers with that ``id`` and ``ok`` or ``fail``. A program that breaks these rules, or ends, is lost: it is ended, and
its requests under way may have happened.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from select import select
from typing import Any

from stormproof.contracts.client import NotDone, NotFound
from stormproof.text import last_words, reason
from stormproof.timeout_scale import TIMEOUT_FACTOR

VERSION = 1
"""The version of the protocol."""
QUEUES, LOGS, REGISTERS, LOCKS = "queues", "logs", "registers", "locks"
FEATURES = (QUEUES, LOGS, REGISTERS, LOCKS)
"""The features of which a program must announce at least one."""
PREPARE = "prepare"
EXTRAS = (PREPARE,)
"""Further requests that a program may announce."""

ATTRIBUTES = ("prefetch", "heartbeat", "session", "acquire_seconds", "redelivers_within")
"""The attributes of connections that a program may announce."""

HELLO_SECONDS = 8.0 * TIMEOUT_FACTOR
"""The time limit for a program's first line: below the limit for creating a connection (``apart.MAKE_SECONDS``)."""
CLOSE_SECONDS = 1.0
"""The time that a program may take for ``close``; afterwards it is ended anyway."""
MAX_LINE_BYTES = 16 << 20
"""The longest line: longer ones are a mistake of the program, and would fill the harness's memory."""
_SHOWN = 120
"""The number of characters of a wrong line that an error shows."""
_CHUNK_BYTES = 1 << 16
# The kernel ends the program when the thread that started it ends, in whatever way the harness ends (prctl(2)).
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")


class ProgramLost(Exception):
    """The program broke the protocol or ended; the request under way may have happened."""


@dataclass(frozen=True)
class Hello:
    """A program's first line: the features and further requests that it announces, and its connections' attributes.

    ``port`` is the port of its brokers; ``ATTRIBUTES`` are those of ``Prefetching``, ``Beating``, ``Redelivering``
    and ``LockConnection`` in ``stormproof.contracts.client``. None: not announced.
    """

    can: frozenset[str]
    port: int | None = None
    prefetch: int | None = None
    heartbeat: float | None = None
    session: float | None = None
    acquire_seconds: float | None = None
    redelivers_within: float | None = None

    @classmethod
    def parse(cls, line: bytes) -> Hello:
        """Return the announcement in a line; raises ProgramLost for anything else."""
        found = parse_object(line, "its first line")
        version = found.pop("stormproof", None)
        if version != VERSION:
            raise ProgramLost(f'its first line needs "stormproof": {VERSION}, the version of the protocol, not '
                              f"{_shown(version)}")  # fmt: skip
        can = found.pop("can", None)
        if not isinstance(can, list) or not all(isinstance(word, str) for word in can):
            raise ProgramLost(f'its first line needs "can", a list of texts, not {_shown(can)}')
        if odd := next((word for word in can if word not in (*FEATURES, *EXTRAS)), None):
            raise ProgramLost(f"its first line announces {odd!r}; known: {', '.join((*FEATURES, *EXTRAS))}")
        if not set(can) & set(FEATURES):
            raise ProgramLost(f'its first line\'s "can" needs at least one of {", ".join(FEATURES)}')
        known = [each.name for each in fields(cls) if each.name != "can"]
        if odd := next((name for name in found if name not in known), None):
            raise ProgramLost(f"its first line has {odd!r}; known: stormproof, can, {', '.join(known)}")
        for name, value in found.items():
            whole = name in ("port", "prefetch")
            if not is_whole(value) if whole else not _is_number(value) or value < 0:
                raise ProgramLost(f"its first line's {name!r} must be {'a whole' if whole else 'a'} number of 0 or "
                                  f"more, not {_shown(value)}")  # fmt: skip
        return cls(frozenset(can), **found)


def parse_object(line: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in a line; raises ProgramLost for anything else."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise ProgramLost(f"{what} is not JSON in UTF-8: {_shown_text(line)}") from None
    if not isinstance(found, dict):
        raise ProgramLost(f"{what} is not a JSON object: {_shown_text(line)}")
    return found


def encode_bytes(body: bytes) -> Any:
    """Return bytes in the protocol's form: a text if they are UTF-8, otherwise ``{"base64": ...}``."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def decode_bytes(found: Any) -> bytes:
    """Return the bytes of that form; raises ProgramLost for anything else."""
    try:
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, dict) and list(found) == ["base64"] and isinstance(found["base64"], str):
            return base64.b64decode(found["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error):
        pass
    raise ProgramLost(f'a body must be a text or {{"base64": ...}}, not {_shown(found)}')


def is_whole(found: Any, least: int = 0) -> bool:
    """Return whether a JSON value is a whole number of at least ``least``."""
    return isinstance(found, int) and not isinstance(found, bool) and found >= least


def announced(argv: Sequence[str], seconds: float = HELLO_SECONDS) -> Hello:
    """Start a program, return its announcement, and end it. Blocks.

    Raises:
        ProgramLost: it can't be started, or its first line is missing or wrong.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                       start_new_session=True)  # fmt: skip
        except OSError as error:
            raise ProgramLost(f"it can't be started: {error.strerror}") from None
        try:
            return Hello.parse(_first_line(process, time.monotonic() + seconds))
        except ProgramLost as error:
            errors.seek(0)
            raise ProgramLost(f"{error}{_last_words(errors.read())}") from None
        finally:
            kill_group(process.pid)
            process.communicate()


def _first_line(process: subprocess.Popen[bytes], until: float) -> bytes:
    assert process.stdout is not None
    line = b""
    while b"\n" not in line:
        ready, _, _ = select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise ProgramLost("it did not write its first line in time")
        chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        if not chunk:
            raise ProgramLost("it ended before its first line")
        line += chunk
        if len(line) > MAX_LINE_BYTES:
            raise ProgramLost(f"its first line has more than {MAX_LINE_BYTES} bytes")
    return line.partition(b"\n")[0]


def _last_words(errors: bytes) -> str:
    said = last_words(errors)
    return f"; the last line of its standard error: {said[:_SHOWN]}" if said else ""


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a program and its children; do nothing if they have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Program:
    """A running program, and its requests under way."""

    def __init__(self, process: asyncio.subprocess.Process, tell: Callable[[str], None]) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process, self._stdin = process, process.stdin
        self._tell = tell
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        self._tasks = [asyncio.create_task(_copy_errors(process.stderr, tell))]

    @classmethod
    async def start(cls, argv: Sequence[str], tell: Callable[[str], None]) -> tuple[Program, Hello]:
        """Start a program; ``tell`` takes each line of its standard error. Return it and its announcement.

        Raises:
            NotDone: it can't be started. ProgramLost: its first line is missing or wrong.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *DIES_WITH_US, *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, limit=MAX_LINE_BYTES)  # fmt: skip
        except OSError as error:
            raise NotDone(f"the client program can't be started: {error}") from error
        program = cls(process, tell)
        try:
            hello = Hello.parse(await program._line())
        except BaseException as error:
            program._lose(str(error) or "it was not awaited")
            raise
        program._tasks.append(asyncio.create_task(program._receive()))
        return program, hello

    async def ask(self, op: str, *, keep: bool = False, **values: Any) -> Any:
        """Send a request and return the ``ok`` of its answer.

        ``keep``: the program continues after a cancellation of this call; its answer is then ignored.

        Raises:
            NotDone: the program says that the request was certainly not carried out, or it was lost before. NotFound:
                the object does not exist. ProgramLost: the program was lost meanwhile.
        """
        if self._lost:
            raise NotDone(f"the client program was ended before: {self._lost}")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "op": op, **values}, separators=(",", ":"))
        try:
            self._stdin.write(line.encode() + b"\n")  # one request at a time, so there is no need to wait for space
            return await answer
        except asyncio.CancelledError:
            if not keep:
                self._lose(f"no answer to {op!r} in time")
            raise

    def broke(self, why: str) -> ProgramLost:
        """End the program because an answer has the wrong form; return the error to raise."""
        self._lose(why)
        return ProgramLost(why)

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children."""
        if not self._lost:
            kill_group(self._process.pid, number)

    async def close(self) -> None:
        """Ask the program to disconnect, and end it."""
        if not self._lost and not self._asked:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.ask("close"), CLOSE_SECONDS)
        self._lose("its connection was closed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        await asyncio.wait(self._tasks[:1], timeout=CLOSE_SECONDS)
        self._tasks[0].cancel()

    async def _line(self) -> bytes:
        """Return the next line of the program's standard output; raises ProgramLost if there is none."""
        assert self._process.stdout is not None
        try:
            return (await self._process.stdout.readuntil(b"\n")).rstrip(b"\r\n")
        except asyncio.IncompleteReadError:
            raise ProgramLost(f"the client program ended{await self._status()}") from None
        except asyncio.LimitOverrunError:
            raise ProgramLost(f"a line of the client program has more than {MAX_LINE_BYTES} bytes") from None

    async def _status(self) -> str:
        try:
            status = await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        except TimeoutError:
            return " its output"
        return f" with status {status}" if status >= 0 else f" by signal {-status}"

    async def _receive(self) -> None:
        """Give each answer to its request, until the program is lost."""
        try:
            while True:
                self._answered(await self._line())
        except ProgramLost as error:
            self._lose(str(error))
        except Exception as error:  # a bug of ours must not leave the requests waiting
            self._lose(reason(error))

    def _answered(self, line: bytes) -> None:
        found = parse_object(line, "a line of the client program")
        number: Any = found.get("id")
        if not is_whole(number) or (answer := self._asked.pop(number, None)) is None:
            raise ProgramLost(f"an answer of the client program has the id {_shown(number)}, and no request waits for "
                              "it")  # fmt: skip
        if answer.done():  # its caller was cancelled
            return
        if "ok" in found and not found.keys() & {"fail", "error"}:
            answer.set_result(found["ok"])
        elif isinstance(found.get("fail"), str) and not found.keys() & {"ok", "error"}:
            answer.set_exception((NotFound if found.get("missing") is True else NotDone)(found["fail"]))
        elif isinstance(found.get("error"), str):
            error = ProgramLost(found["error"])
            answer.set_exception(error)
            raise error
        else:
            error = ProgramLost('an answer of the client program needs "ok", or a text "fail" or "error": '
                                f"{_shown_text(line)}")  # fmt: skip
            answer.set_exception(error)
            raise error

    def _lose(self, why: str) -> None:
        """End the program, and fail its requests under way."""
        if self._lost:
            return
        self._lost = why
        kill_group(self._process.pid)
        self._tell(f"(ended by the harness: {why})")
        for task in self._tasks[1:]:
            if task is not asyncio.current_task():
                task.cancel()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(ProgramLost(why))
        self._stdin.close()


async def _copy_errors(stream: asyncio.StreamReader, tell: Callable[[str], None]) -> None:
    """Pass on the lines of a program's standard error; the parts of a long line count as lines."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _CHUNK_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            tell(line.decode(errors="replace"))
    if rest:
        tell(rest.decode(errors="replace"))


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _shown(found: Any) -> str:
    text = json.dumps(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _shown_text(line: bytes) -> str:
    text = repr(line[: _SHOWN + 1].decode(errors="replace"))
    return text if len(line) <= _SHOWN else f"{text[:_SHOWN]}..."
