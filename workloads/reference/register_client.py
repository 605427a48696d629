"""A client of registers that are keys of a last-value queue, over STOMP."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from nodes.reference.engine.value_names import EXPECTED, KEY, LAST_VALUE_PREFIX, REFUSED, VALUE, VERSION
from stormproof.operation import Op
from workloads.feature_coverage import FeatureCoverage
from workloads.reference.connection import ConnectionBroken
from workloads.reference.stomp_client import StompClient, StompCluster
from workloads.register_client import FOREIGN, NO_MATCH, NOTHING, UNTOLD, RegisterContent, decode_value, encode_value

DESTINATION = f"{LAST_VALUE_PREFIX}registers"


class RegisterClient(StompClient):
    """Registers as keys of a last-value queue; compare-and-set compares the version."""

    _coverage: FeatureCoverage | None = None

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage | None = None) -> None:
        super().__init__(cluster, host, first)
        self._seen: dict[int, RegisterContent] = {}
        self._coverage = coverage

    def _address(self, key: int) -> dict[str, str]:
        """Return the headers that identify the register."""
        return {"destination": DESTINATION, KEY: str(key) if self._coverage is None else self._coverage.key(key)}

    def _read_value(self, key: int, body: bytes) -> int:
        """Return a value that was read; ``FOREIGN`` where it differs from the written bytes."""
        if self._coverage is None:
            return decode_value(body)
        value = decode_value(body.partition(b"\n")[0])
        return value if value == NOTHING or body == self._coverage.single_value(key, value)[0] else FOREIGN

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

    async def read(self, key: int) -> RegisterContent:
        """Return the content of a register."""
        answer = await self.request("READ", self._address(key))
        value = self._read_value(key, base64.b64decode(answer.get(VALUE, "")))
        seen = self._seen[key] = RegisterContent(value, answer[VERSION])
        return seen

    async def put(self, key: int, value: int, version: str | None = None) -> bool | None:
        """Write a value, if the register has that version. Return False when it has another version, None when the
        broker only reports that it has already carried out the request."""
        headers, body = {**self._address(key), "content-type": "text/plain"}, encode_value(value)
        if self._coverage is not None:
            body, items = self._coverage.single_value(key, value)
            self._coverage.use("write", *items, *(["value-key-odd"] if headers[KEY] != str(key) else []))
        if version is not None:
            headers[EXPECTED] = version
        self._seen.pop(key, None)
        answer: Mapping[str, str] = await self.request("SEND", headers, body)
        if VERSION not in answer:
            return None
        if REFUSED in answer:
            return False
        self._seen[key] = RegisterContent(value, answer[VERSION])
        return True

    def reset(self) -> None:
        """Forget the versions: the new connection may be to another broker, with another count."""
        self._seen.clear()
