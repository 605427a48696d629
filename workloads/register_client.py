"""Clients of registers: read, write and compare-and-set of single values.

A register is a key of one last-value queue. A compare-and-set expects the value that this client saw last there (it
looks first where it has seen none): the completion's value is the pair of what it expected and what it set.
"""

from __future__ import annotations

from dataclasses import dataclass

from stormproof.contracts.client import NotDone, RegisterConnection
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.generic_client import GenericQueueClient

NOTHING = 0
"""The value of a register that was never written; written values are above it."""
NO_MATCH = "not what was expected"
"""The error of a compare-and-set that certainly changed nothing, since the value was another one: an observation."""
UNTOLD = "nobody says whether it was set"


@dataclass(frozen=True)
class RegisterContent:
    """The value of a register, and its version by the broker's count (empty where the broker does not count)."""

    value: int
    version: str = ""


class GenericRegisterClient(GenericQueueClient):
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
