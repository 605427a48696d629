"""Clients that are programs in any language, and Python clients that can't bind, which run as such programs.

The protocol is in docs/clients.md. A connection starts its program in its client place and ends it; a request that the
program answers with ``fail`` certainly was not carried out (docs/clients.md, "Answers").
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stormproof.clients.preparing import PREPARE_SECONDS, until_done
from stormproof.clients.program import (
    ATTRIBUTES,
    FEATURES,
    LOCKS,
    LOGS,
    PREPARE,
    QUEUES,
    REGISTERS,
    Hello,
    Program,
    ProgramLost,
    announced,
    decode_bytes,
    encode_bytes,
    is_whole,
)
from stormproof.contracts.client import Delivery, LogEntry, NotDone
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.errors import UsageError

PREFIX = "exec:"
"""The beginning of a client's name for a program: ``exec:./client ARGUMENTS``."""
COMMAND = Option("command", "", "the client program and its arguments, for the client exec")
_LEAST_OFFSET, _MOST_OFFSET = 1, (1 << 31) - 1
"""The range of a log's offsets (``LogConnection``)."""


class _Connection:
    """A connection that has a separate program, from ``connect`` to ``close``."""

    def __init__(self, argv: Sequence[str], setup: BrokerSetup, hello: Hello) -> None:
        self._argv, self._setup, self._hello = argv, setup, hello
        self._program: Program | None = None
        for name in ATTRIBUTES:
            if (value := getattr(hello, name)) is not None:
                setattr(self, name, value)
        if hasattr(self, "heartbeat"):
            self.stand_still = self._stand_still

    async def connect(self, host: str, port: int, local: str) -> None:
        """Let the program connect; start it if it does not run yet."""
        await self.start(local)
        assert self._program is not None
        await self._program.ask("connect", host=host, port=port, local=local, **connect_values(self._setup))

    async def start(self, local: str) -> None:
        """Start the program in the client place with the address ``local``, unless it runs."""
        if self._program is not None:
            return
        argv = [*self._setup.place_command(local), *self._argv]
        program, hello = await Program.start(argv, functools.partial(_tell, self._setup.tell, local))
        self._program = program
        if missing := sorted(self._hello.can - hello.can):
            raise program.broke(f"the client program no longer announces {', '.join(missing)}")

    async def prepare(self) -> None:
        """Let the program create the objects that the workload uses."""
        await self._ask("prepare", names=_names(self._setup))

    async def _stand_still(self, seconds: float) -> None:
        """Stop the program's processes for that time (SIGSTOP)."""
        assert self._program is not None
        self._program.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._program.signal(signal.SIGCONT)

    async def close(self) -> None:
        """Let the program disconnect, and end it."""
        program, self._program = self._program, None
        if program is not None:
            await program.close()

    async def _ask(self, op: str, *, keep: bool = False, **values: Any) -> Any:
        if self._program is None:
            raise NotDone("the client program is not connected")
        return await self._program.ask(op, keep=keep, **values)

    def _wrong(self, op: str, wanted: str, found: Any) -> ProgramLost:
        assert self._program is not None
        return self._program.broke(f"the client program answered {op!r} with {found!r}, not with {wanted}"[:300])

    def _bytes(self, found: Any) -> bytes:
        assert self._program is not None
        try:
            return decode_bytes(found)
        except ProgramLost as error:
            raise self._program.broke(str(error)) from None

    async def _nothing(self, op: str, **values: Any) -> None:
        if (found := await self._ask(op, **values)) not in (None, True):
            raise self._wrong(op, "null", found)

    async def _truth(self, op: str, **values: Any) -> bool:
        if not isinstance(found := await self._ask(op, **values), bool):
            raise self._wrong(op, "true or false", found)
        return found


class _Queues(_Connection):
    async def send(self, queue: str, body: bytes) -> None:
        """Put a message into a queue."""
        await self._nothing("send", queue=queue, body=encode_bytes(body))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Return the next message of a queue."""
        found = await self._ask("take", queue=queue, timeout=timeout)
        if found is None:
            return None
        now = asyncio.get_running_loop().time()
        if not isinstance(found, dict) or not isinstance(found.get("delivery"), str | int):
            raise self._wrong("take", 'null, or an object with "delivery" and "body"', found)
        number, age = found.get("number"), found.get("age")
        if number is not None and not is_whole(number):
            raise self._wrong("take", 'a whole "number"', found)
        if age is not None and not (isinstance(age, int | float) and age >= 0):
            raise self._wrong("take", 'an "age" in seconds', found)
        if not isinstance(returns := found.get("give_back", False), bool):
            raise self._wrong("take", 'a true or false "give_back"', found)
        identity = found["delivery"]
        back = functools.partial(self._nothing, "give_back", delivery=identity)
        return Delivery(self._bytes(found.get("body")), functools.partial(self._nothing, "ack", delivery=identity),
                        back if returns else None, number,
                        None if age is None else now - age)  # fmt: skip

    async def depth(self, queue: str) -> int | None:
        """Return the number of messages in a queue, if the program knows it."""
        found = await self._ask("depth", queue=queue)
        if found is not None and not is_whole(found):
            raise self._wrong("depth", "a whole number or null", found)
        return None if found is None else int(found)


class _Reads(_Connection):
    async def read(self, name: str, after: int | None = None, limit: int = 0) -> Any:
        """Return a log's entries after an offset, or, without one, a register's value."""
        if after is None:
            found = await self._ask("read", register=name)
            return None if found is None else self._bytes(found)
        found = await self._ask("read", log=name, after=after, limit=limit)
        if not isinstance(found, list) or not all(isinstance(each, dict) and self._is_offset(each.get("offset"))
                                                  for each in found):  # fmt: skip
            raise self._wrong("read", 'a list of objects with "offset" and "body"', found)
        return [LogEntry(each["offset"], self._bytes(each.get("body"))) for each in found]

    @staticmethod
    def _is_offset(found: Any) -> bool:
        return is_whole(found, _LEAST_OFFSET) and found <= _MOST_OFFSET


class _Logs(_Reads):
    async def append(self, name: str, body: bytes) -> int:
        """Append to a log; return the offset."""
        found = await self._ask("append", log=name, body=encode_bytes(body))
        if not self._is_offset(found):
            raise self._wrong("append", f"an offset from {_LEAST_OFFSET} to {_MOST_OFFSET}", found)
        return int(found)


class _Registers(_Reads):
    async def write(self, name: str, value: bytes) -> None:
        """Set a register."""
        await self._nothing("write", register=name, value=encode_bytes(value))

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Set a register if it holds ``expected``; return whether it was set."""
        return await self._truth("cas", register=name, value=encode_bytes(value),
                                 expected=None if expected is None else encode_bytes(expected))  # fmt: skip


class _Locks(_Connection):
    async def acquire(self, name: str, seconds: float) -> int | None:
        """Wait for a lock; return the fencing token."""
        found = await self._ask("acquire", keep=True, lock=name, seconds=seconds)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise self._wrong("acquire", "a whole number or null", found)
        return found

    async def give_up(self, name: str) -> None:
        """Stop waiting for a lock."""
        await self._nothing("give_up", lock=name)

    async def release(self, name: str) -> bool:
        """Release a lock; return whether this connection still held it."""
        return await self._truth("release", lock=name)


_KINDS: Mapping[str, type[_Connection]] = {QUEUES: _Queues, LOGS: _Logs, REGISTERS: _Registers, LOCKS: _Locks}


@functools.cache
def _class_for(features: frozenset[str]) -> type[_Connection]:
    """Return the class of connections with exactly these features: checks look for a feature's methods."""
    return type("ProgramConnection", tuple(_KINDS[name] for name in FEATURES if name in features), {})


def program_connection(argv: Sequence[str], setup: BrokerSetup, hello: Hello) -> Any:
    """Return a new connection, not open yet, by a program that announces ``hello``."""
    return _class_for(hello.can & set(FEATURES))(argv, setup, hello)


def _names(setup: BrokerSetup) -> dict[str, list[str]]:
    demands = setup.demands
    return {kind: list(getattr(demands, kind)) for kind in ("queues", "topics", "logs", "registers", "locks")}


def connect_values(setup: BrokerSetup) -> dict[str, Any]:
    """Return what a ``connect`` tells besides the addresses to use."""
    access = setup.access
    return {
        "addresses": [dataclasses.asdict(broker) for broker in setup.brokers], "hosts": dict(setup.hosts),
        "names": _names(setup),
        "login": access.credentials.login, "password": access.credentials.passcode, "vhost": access.vhost,
        "sasl": access.sasl, "tls": access.tls and dataclasses.asdict(access.tls), "options": dict(setup.options),
    }  # fmt: skip


def _tell(tell: Callable[[str], None], local: str, line: str) -> None:
    tell(f"{local} {line}" if local else line)


class ExecClient(ProtocolClient):
    """A client program in any language; the option ``command`` names it."""

    name = "exec"
    summary = "a program in any language that speaks JSON lines (docs/clients.md)"
    port = 0
    provides = frozenset(FEATURES)
    options = (COMMAND,)
    binds = False

    def features(self, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the features that the program announces.

        Raises:
            UsageError: the option names none, or the program does not keep the protocol.
        """
        return _hello_of(_command(options)).can & set(FEATURES)

    def port_of(self, options: Mapping[str, Any], tls: bool) -> int:
        """Return the port that the program announces; raises UsageError if it announces none."""
        if (port := _hello_of(_command(options)).port) is None:
            raise UsageError(f"{PREFIX}{_command(options)}: it announces no port of its brokers; add the 'port' to its "
                             "first line, or name the port where the broker is named")
        return port

    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection, which starts the program."""
        command = _command(setup.options)
        return program_connection(words_of(command), setup, _hello_of(command))

    async def prepare(self, setup: BrokerSetup) -> None:
        """Let the program create the workload's objects, if it announces ``prepare``: at the first broker where it
        succeeds within ``PREPARE_SECONDS``; raise the last error if it does not."""
        if PREPARE not in _hello_of(_command(setup.options)).can:
            return

        async def make() -> None:
            trouble = Exception("there is no broker")
            for broker in setup.brokers:
                connection = self.connection(setup)
                try:
                    async with asyncio.timeout(PREPARE_SECONDS):
                        await connection.connect(broker.host, broker.port, "")
                        return await connection.prepare()  # type: ignore[no-any-return]
                except Exception as error:
                    trouble = error
                finally:
                    await connection.close()
            raise trouble

        await until_done(make)


class InProgram(ProtocolClient):
    """A Python client whose library can't bind, as a program: ``python -m stormproof.clients.serve NAME``.

    It is registered instead of ``inner`` under its name. Only its connections are in programs. Requests about the
    brokers stay in this process, which no fault cuts off. Make one by ``in_program``.
    """

    binds = False

    def __init__(self, name: str, inner: ProtocolClient) -> None:
        self.inner = inner
        for each in ("summary", "port", "tls_port", "provides", "options", "defaults", "guarantees", "distributions",
                     "extra", "one_leader"):  # fmt: skip
            setattr(self, each, getattr(inner, each))
        self.name = name  # type: ignore[misc]

    def features(self, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the features that clients have under these options."""
        return self.inner.features(options)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError if clients can't do what the options of the test ask for."""
        self.inner.check(options)

    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection, which starts the program."""
        like = self.inner.connection(setup)
        declared = {name: getattr(like, name, None) for name in ATTRIBUTES}
        hello = Hello(self.provides & set(FEATURES), **declared)
        return program_connection([sys.executable, "-m", "stormproof.clients.serve", self.name], setup, hello)

    def own_connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection in this process."""
        return self.inner.own_connection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create what the workload uses."""
        await self.inner.prepare(setup)

    async def advertised(self, setup: BrokerSetup) -> Mapping[str, tuple[str, int]]:
        """Return the host and port under which each node tells clients to reach it."""
        return await self.inner.advertised(setup)

    async def move_leader(self, setup: BrokerSetup, name: str, node: str) -> None:
        """Ask for a move of a leader."""
        await self.inner.move_leader(setup, name, node)

    def why_no_move(self, options: Mapping[str, Any]) -> str:
        """Return why there is no such request."""
        return self.inner.why_no_move(options)

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete objects of these names; return those left."""
        return await self.inner.clear(setup, names)


class _InProgramWithLeaders(InProgram):
    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the node that leads each object."""
        return await self.inner.leaders(setup)


def in_program(name: str, inner: ProtocolClient) -> InProgram:
    """Return a client whose library can't bind as one whose connections are programs; ``name`` is its registered name,
    or its place as ``MODULE:ATTRIBUTE``."""
    tells = type(inner).leaders is not ProtocolClient.leaders  # whether it overrides it says whether leaders exist
    return (_InProgramWithLeaders if tells else InProgram)(name, inner)


def _command(options: Mapping[str, Any]) -> str:
    if command := str(options.get(COMMAND.name) or ""):
        return command
    raise UsageError(f"the client exec needs a program: {PREFIX}./client, or --set {COMMAND.name}=./client")


def words_of(command: str) -> list[str]:
    """Return a command's words, the program's path absolute.

    Raises:
        UsageError: it can't be split into words, or the program does not exist.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{PREFIX}{command}: {error}") from None
    if not words:
        raise UsageError(f"no program is named: give its path, as in {PREFIX}./client")
    found = shutil.which(words[0])
    if found is None:
        raise UsageError(f"{PREFIX}{command}: no program {words[0]!r} here that may be executed")
    return [str(Path(found).absolute()), *words[1:]]


@functools.cache
def _hello_of(command: str) -> Hello:
    try:
        return announced(words_of(command))
    except ProgramLost as error:
        raise UsageError(f"{PREFIX}{command}: {error}; try: stormproof client check {shlex.quote(command)}") from None


EXEC = ExecClient()
