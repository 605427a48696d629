"""The part of a dialogue about last-value queues: a private queue, of which each version and each value is known."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from nodes.reference.engine.value_names import EXPECTED, KEY, LAST_VALUE_PREFIX, REFUSED, VALUE, VERSION
from workloads.feature_coverage import MAX_VALUE_BYTES
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.dialogue.invalid_commands import MAX_NAME_CHARS
from workloads.reference.dialogue.speaker import DialogueSpeaker

_NONE = "0"
"""The version of a key without a value."""


class ValueDialogue:
    """The keys of one client's last-value queue; one of them has the longest valid name."""

    def __init__(self, client: DialogueSpeaker) -> None:
        self._client, self._rng = client, client.rng
        self._destination = f"{LAST_VALUE_PREFIX}{client.mine}.values"
        self._known: dict[str, tuple[str, bytes]] = {}
        """Key -> its version and its value."""
        self._newest = 0
        """The highest version of any key."""

    async def use(self) -> None:
        """Write a value, with or without a condition, and read a key."""
        key = self._rng.choice(("a", "b", "k".ljust(MAX_NAME_CHARS, "k")))
        if self._rng.random() < 0.7:
            await self._write(key)
        await self._read(key if self._rng.random() < 0.5 else self._rng.choice(("a", "b", "never")))
        self._client.coverage.use("values")

    async def _write(self, key: str) -> None:
        most = min(MAX_VALUE_BYTES, self._client.limits.max_body)
        size = self._rng.choice((0, 1, 30, most))
        body = self._rng.randbytes(size)
        version, _ = self._known.get(key, (_NONE, b""))
        expected = self._rng.choice((None, version, str(self._newest + 1)))
        about = {"destination": self._destination, KEY: key, **({} if expected is None else {EXPECTED: expected})}
        answer = await self._client.say("SEND", about, body)
        if VERSION not in answer:  # it was sent again; the broker does not say whether it was refused before
            await self._look_again(key)
            return
        holds = expected in (None, version)
        if (REFUSED in answer) is holds:
            raise Mismatch(f"a value was {'refused' if holds else 'written'} against its condition")
        if not holds:
            if answer[VERSION] != version:
                raise Mismatch("the refusal of a value names another version than its key has")
            return
        self._note(key, answer[VERSION], body)

    async def _look_again(self, key: str) -> None:
        """Note what a key has now, after an answer that did not tell."""
        answer = await self._client.say("READ", {"destination": self._destination, KEY: key})
        version, value = answer[VERSION], base64.b64decode(answer.get(VALUE, ""))
        if (version, value) != self._known.get(key, (_NONE, b"")):
            self._note(key, version, value)

    def _note(self, key: str, version: str, value: bytes) -> None:
        if int(version) <= self._newest:
            raise Mismatch("a version does not grow")
        self._newest = int(version)
        self._known[key] = version, value

    async def _read(self, key: str) -> None:
        answer: Mapping[str, str] = await self._client.say("READ", {"destination": self._destination, KEY: key})
        version, value = self._known.get(key, (_NONE, b""))
        if answer.get(VERSION) != version:
            raise Mismatch("a key has another version than the receipt of its write")
        if (VALUE in answer) is not (version != _NONE) or base64.b64decode(answer.get(VALUE, "")) != value:
            raise Mismatch("a key has another value than was written")
