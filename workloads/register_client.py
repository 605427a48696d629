"""Clients of registers: read, write and compare-and-set of single values, over STOMP or over primitives of any kind.

A register is a key of one last-value queue. A compare-and-set expects the value that this client last saw there (it
reads first if it has seen none). The completion's value is the pair of the expected and the new value.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from nodes.reference.engine.value_names import EXPECTED, KEY, LAST_VALUE_PREFIX, REFUSED, VALUE, VERSION
from stormproof.contracts.client import NotDone, RegisterConnection
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.client import StompClient, StompCluster
from workloads.connection import ConnectionBroken
from workloads.neutral_client import NeutralQueueClient
from workloads.surface import Surface

DESTINATION = f"{LAST_VALUE_PREFIX}registers"
NOTHING = 0
"""The value of a register that was never written; written values are above it."""
NO_MATCH = "not what was expected"
"""The error of a compare-and-set that certainly changed nothing, since the value was another one: an observation."""
UNTOLD = "nobody says whether it was set"


@dataclass(frozen=True)
class Seen:
    """The value of a register, and its version by the broker's count (empty where the broker does not count)."""

    value: int
    version: str = ""


class RegisterClient(StompClient):
    """Registers as keys of a last-value queue; compare-and-set compares the version."""

    _surface: Surface | None = None

    def __init__(self, cluster: StompCluster, host: str, first: int, surface: Surface | None = None) -> None:
        super().__init__(cluster, host, first)
        self._seen: dict[int, Seen] = {}
        self._surface = surface

    def _address(self, key: int) -> dict[str, str]:
        """Return the headers that identify the register."""
        return {"destination": DESTINATION, KEY: str(key) if self._surface is None else self._surface.key(key)}

    def _read_value(self, key: int, body: bytes) -> int:
        """Return a value that was read; ``FOREIGN`` where it differs from the written bytes."""
        if self._surface is None:
            return decode_value(body)
        value = decode_value(body.partition(b"\n")[0])
        return value if value == NOTHING or body == self._surface.single_value(key, value)[0] else FOREIGN

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``read``, ``write`` or ``cas``."""
        key = op.key or 0
        if op.f == "read":
            return op.ok((await self.read(key)).value)
        if op.f == "write":
            await self.put(key, op.value)
            return op.ok()
        return await self._compare_and_set(op, key)

    async def _compare_and_set(self, op: Op, key: int) -> Op:
        try:
            seen = self._seen.get(key) or await self.read(key)
        except (TimeoutError, ConnectionBroken) as error:
            return op.fail(f"could not look before: {error or 'no receipt in time'}")
        op = op._replace(value=(seen.value, op.value))
        try:
            told = await self.put(key, op.value[1], seen.version)
        except (TimeoutError, ConnectionBroken) as error:
            return op.info(str(error) or "no receipt in time")
        if told is None:
            return op.info(UNTOLD)
        return op.ok() if told else op.fail(NO_MATCH)

    async def read(self, key: int) -> Seen:
        """Return the content of a register."""
        answer = await self.request("READ", self._address(key))
        value = self._read_value(key, base64.b64decode(answer.get(VALUE, "")))
        seen = self._seen[key] = Seen(value, answer[VERSION])
        return seen

    async def put(self, key: int, value: int, version: str | None = None) -> bool | None:
        """Write a value, if the register has that version. Return False when it has another version, None when the
        broker only reports that it has already carried out the request."""
        headers, body = {**self._address(key), "content-type": "text/plain"}, encode_value(value)
        if self._surface is not None:
            body, items = self._surface.single_value(key, value)
            self._surface.use("write", *items, *(["value-key-odd"] if headers[KEY] != str(key) else []))
        if version is not None:
            headers[EXPECTED] = version
        self._seen.pop(key, None)
        answer: Mapping[str, str] = await self.request("SEND", headers, body)
        if VERSION not in answer:
            return None
        if REFUSED in answer:
            return False
        self._seen[key] = Seen(value, answer[VERSION])
        return True

    def reset(self) -> None:
        """Forget the versions: the new connection may be to another broker, with another count."""
        self._seen.clear()


class NeutralRegisterClient(NeutralQueueClient):
    """Registers of a system whose connections are ``RegisterConnection``."""

    def __init__(self, cluster: Cluster, connection: RegisterConnection, host: str, thread: int) -> None:
        super().__init__(cluster, connection, host, thread)  # type: ignore[arg-type]  # opened and closed the same way
        self._seen: dict[int, bytes | None] = {}

    def registers(self) -> RegisterConnection:
        """Return the connection, which is open."""
        assert isinstance(self._connection, RegisterConnection)
        return self._connection

    async def _carry_out(self, op: Op) -> Op:
        registers, key = self.registers(), op.key or 0
        name = self._cluster.own_name(register_name(key))
        if op.f == "read":
            found = self._seen[key] = await self._bounded(registers.read(name))
            return op.ok(decode_value(found or b""))
        if op.f == "write":
            self._seen.pop(key, None)
            await self._bounded(registers.write(name, encode_value(op.value)))
            self._seen[key] = encode_value(op.value)
            return op.ok()
        if key not in self._seen:
            self._seen[key] = await self._bounded(registers.read(name))
        expected, body = self._seen.pop(key), encode_value(op.value)
        op = op._replace(value=(decode_value(expected or b""), op.value))
        try:
            done = await self._bounded(registers.cas(name, expected, body))
        except NotDone:
            raise
        except Exception as error:
            await self.close()
            return op.info(f"no answer: {type(error).__name__}: {error}")
        if not done:
            return op.fail(NO_MATCH)
        self._seen[key] = body
        return op.ok()


def register_name(key: int) -> str:
    """Return the name of register number ``key`` in a system whose registers have names."""
    return f"r{key}"


def encode_value(value: int) -> bytes:
    """Return the encoding in which clients write a value."""
    return b"%d" % value


def decode_value(body: bytes) -> int:
    """Return a value that was read: ``NOTHING`` where there is none, ``FOREIGN`` where no client wrote it."""
    if not body:
        return NOTHING
    return int(body) if body.isdigit() and len(body) < 10 else FOREIGN


FOREIGN = (1 << 31) - 1
"""Stands for any value that no client of a test wrote."""
