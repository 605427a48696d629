"""The part of a broker's features that clients use: drawn for each run and each process, counted by item.

A run uses some of the *features* below, drawn from its seed (swarm testing: Groce et al., ISSTA 2012: runs that omit
some features reach states that runs with all features don't). Each process draws its own manner of taking. All draws
come from separate random streams, so that no other part of a run depends on them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.stomp import Frame
from stormproof.contracts.option import Option
from stormproof.contracts.workload import Workload
from stormproof.test import Test
from workloads.messages import encode_body

FEATURE_COVERAGE = Option(
    "surface", False,
    "clients use all features of the broker, another part of them in each run: bodies and headers of all kinds, "
    "modes of acknowledgement, windows, NACK, UNSUBSCRIBE, ends of transactions (docs/reference/feature-coverage.md)")
"""An option of the workloads whose clients support it."""

OBSERVATION_CHECKS = ("content", "subscription", "redelivery", "refusal")
"""The checks that judge the consumers' observations in this case."""

BODIES, LARGE, HEADERS = "bodies", "large", "headers"
CLIENT_ACK, AUTO_ACK, WINDOWS = "client-ack", "auto-ack", "windows"
NACK, UNSUBSCRIBE, REFUSALS, EXCHANGES, SECOND = "nack", "unsubscribe", "refusals", "exchanges", "second"
LINGER = "linger"
SEND_TX, ACK_TX, NACK_TX, ABORTS = "send-in-transaction", "ack-in-transaction", "nack-in-transaction", "aborts"
FEATURES = (BODIES, LARGE, HEADERS, CLIENT_ACK, AUTO_ACK, WINDOWS, NACK, UNSUBSCRIBE, SEND_TX, ACK_TX, NACK_TX, ABORTS,
            REFUSALS, EXCHANGES, SECOND, LINGER)
"""The features that a run uses or leaves out."""

INDIVIDUAL, CLIENT, AUTO = "client-individual", "client", "auto"

VALUE_HEADER = "x-value"
"""Header that identifies a message whose body does not."""
_BROKERS_OWN = frozenset({"subscription", "message-id", "destination", "ack", "x-seq", "redelivered", "x-redeliveries",
                          "content-length", "x-replica"})  # fmt: skip
_ODD_TEXTS = ("a:b", "back\\slash", "two\nlines", "re\rturn", "\\n", " blanks ", "", "ünïcödé ☃", "x" * 300, "\t", "::")
MAX_VALUE_BYTES = 16 << 10
"""The largest value that a broker takes (docs/stomp.md)."""
_LARGE_SIZES = (5_000, 20_000, 70_000, 140_000)
"""Sizes in bytes: beyond the threshold of *large work* for a broker, beyond a read, and beyond a piece of a state
transfer."""


@dataclass(frozen=True)
class Content:
    """Headers and body of a message, and the counted items that they use."""

    headers: Mapping[str, str]
    body: bytes
    items: tuple[str, ...]


class FeatureCoverage:
    """The features of one run: ``features`` is drawn from its seed; ``used`` counts the uses of each item."""

    def __init__(self, test: Test) -> None:
        self._test = test
        rng = test.rng("surface")
        self.features = frozenset(feature for feature in FEATURES if rng.random() < 0.6)
        self.used: dict[str, int] = {}
        self._made: dict[int, int] = {}

    def use(self, *items: str) -> None:
        """Count uses of these items."""
        for item in items:
            self.used[item] = self.used.get(item, 0) + 1

    def style(self, thread: int) -> ConsumerStyle:
        """Return the manner of the next process of a thread."""
        number = self._made[thread] = self._made.get(thread, -1) + 1
        return ConsumerStyle(self.features, self._test.rng(f"surface/{thread}/{number}"))

    def content(self, value: tuple[int, int]) -> Content:
        """Return the content of the message of this value, which depends on the run's seed alone."""
        features, plain = self.features, encode_body(value)
        if not features & {BODIES, LARGE, HEADERS}:
            return Content({}, plain, ())
        rng = self._test.rng(f"surface/content/{value[0]}/{value[1]}")
        headers, body, items = _body(rng, features, plain)
        if HEADERS in features and rng.random() < 0.5:
            items += ("headers-escaped",)
            for place in range(rng.randint(1, 4)):
                name = rng.choice(("x-note", "x:colon", "x\\slash", "x-ünïcode", "x two", "X-Note"))
                headers[f"{name}{place}"] = rng.choice(_ODD_TEXTS)
            headers |= {"correlation-id": f"{value[0]}-{value[1]}", "reply-to": "/queue/answers"}
            if rng.random() < 0.1:
                items += ("headers-many",)
                headers |= {f"x-h{place}": str(place) * 3 for place in range(80)}
        return Content(headers, body, items)

    def single_value(self, key: int, value: int) -> tuple[bytes, tuple[str, ...]]:
        """Return the bytes of a register's value, 16 KiB at most, and its items; its first line is the value."""
        plain, features = b"%d" % value, self.features
        if not features & {BODIES, LARGE}:
            return plain, ()
        rng = self._test.rng(f"surface/value/{key}/{value}")
        kind = rng.random()
        if LARGE in features and kind < 0.1:
            size = rng.choice((4_000, 9_000, MAX_VALUE_BYTES)) - len(plain) - 1
            return b"%b\n%b" % (plain, rng.randbytes(size)), ("value-large",)
        if BODIES not in features or kind < 0.4:
            return plain, ()
        return b"%b\n%b\0%b" % (plain, rng.randbytes(rng.randint(0, 40)), rng.randbytes(9)), ("value-binary",)

    def key(self, key: int) -> str:
        """Return the name of a key."""
        return f"k:{key}\\ é" if HEADERS in self.features else str(key)


def _body(rng: random.Random, features: frozenset[str], plain: bytes) -> tuple[dict[str, str], bytes, tuple[str, ...]]:
    """Draw a body: return its headers, the body, and its items. Either the body's first line or a header identifies the
    message."""
    kind = rng.random()
    if LARGE in features and kind < 0.03:
        block = rng.randbytes(1000)
        size = rng.choice(_LARGE_SIZES)
        body = b"%b\n%b" % (plain, b"".join(b"%d:%b" % (place, block) for place in range(size // 1000)))
        return {"content-type": "application/octet-stream"}, body, ("body-large",)
    if BODIES not in features or kind < 0.4:
        return {}, plain, ()
    if kind < 0.55:
        return {VALUE_HEADER: plain.decode()}, b"", ("body-empty",)
    if kind < 0.8:
        body = b"%b\n%b" % (plain, b"\0".join(rng.randbytes(rng.randint(0, 60)) for _ in range(4)))
        return {"content-type": "application/octet-stream"}, body, ("body-binary",)
    body = plain + "\nçäö ☃ \\ : \r\n".encode() * rng.randint(1, 5)
    return {"content-type": "text/plain;charset=utf-8"}, body, ("body-text",)


def named(frame: Frame) -> bytes:
    """Return the part of a message that identifies it: ``decode_body`` reads it."""
    header = frame.headers.get(VALUE_HEADER)
    return header.encode() if header is not None else frame.body.partition(b"\n")[0]


def difference(content: Content, destination: str, frame: Frame) -> str | None:
    """Return the part of a MESSAGE that differs from the sent one; None when they are equal. There are few distinct
    texts, so that they can be counted."""
    return difference_of({"content-type": "text/plain", **content.headers}, content.body, destination, frame)


def difference_of(sent: Mapping[str, str], body: bytes, destination: str, frame: Frame) -> str | None:
    """Return the same as ``difference``, for headers and a body."""
    if frame.headers.get("destination") != destination:
        return "destination"
    if frame.body != body:
        return "length of the body" if len(frame.body) != len(body) else "bytes of the body"
    came = {name: text for name, text in frame.headers.items() if name not in _BROKERS_OWN}
    if came == sent:
        return None
    if sent.keys() - came.keys():
        return "a header is missing"
    return "a header is new" if came.keys() - sent.keys() else "text of a header"


@dataclass
class ConsumerStyle:
    """The behaviour of one process: how it takes messages, and its further draws."""

    features: frozenset[str]
    rng: random.Random
    ack: str = INDIVIDUAL
    window: int = 1
    subscriptions: int = field(default=0, init=False)
    transactions: int = field(default=0, init=False)

    def will(self, feature: str, chance: float) -> bool:
        """Return whether it uses a feature now; without the feature no random number is drawn."""
        return feature in self.features and self.rng.random() < chance

    def subscribe(self, reliable: bool) -> str:
        """Draw the next subscription's acknowledgement mode and window; return the subscription's id.

        ``ack:auto`` is excluded on an unreliable connection: messages lost in transit would be lost undetectably.
        """
        modes = [INDIVIDUAL, *([CLIENT] if CLIENT_ACK in self.features else []),
                 *([AUTO] if AUTO_ACK in self.features and reliable else [])]  # fmt: skip
        self.ack = self.rng.choice(modes)
        self.window = self.rng.choice((1, 2, 5, 64)) if WINDOWS in self.features else 1
        self.subscriptions += 1
        odd = HEADERS in self.features and self.rng.random() < 0.5
        return f"s:{self.subscriptions}\\" if odd else str(self.subscriptions)

    async def linger(self, chance: float) -> None:
        """Sometimes pause, as applications do between two frames, so that faults meet messages that are delivered and
        not acknowledged, open transactions, and prepared branches."""
        if self.will(LINGER, chance):
            await asyncio.sleep(self.rng.uniform(0.05, 1.2))

    def transaction(self) -> str:
        """Return the name of its next transaction."""
        self.transactions += 1
        return f"surface {self.transactions}"


class FeatureWorkload(Workload):
    """A workload with the option ``surface``; ``observation_checks`` are the checks that then judge the consumers'
    observations."""

    observation_checks: tuple[str, ...] = OBSERVATION_CHECKS
    _coverage: FeatureCoverage | None = None

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the deciding checks; with the option, also those of the consumers' observations."""
        return (*cls.guarantees, *(cls.observation_checks if options.get(FEATURE_COVERAGE.name) else ()))

    def coverage_of(self, test: Test) -> FeatureCoverage | None:
        """Return the feature coverage of the run; None if the run uses the basic features only."""
        if self._coverage is None and test.options[FEATURE_COVERAGE.name]:
            self._coverage = FeatureCoverage(test)
        return self._coverage

    def used(self) -> Mapping[str, int]:
        """Return the number of uses of each counted item."""
        return self._coverage.used if self._coverage is not None else {}
