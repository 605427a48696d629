"""Commands that a broker can't carry out now: it refuses each, applies no part of it, and ends the connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodes.reference.engine.topics import EXCHANGE_PREFIX, MANAGEMENT, TOPIC_MANAGER
from workloads.feature_coverage import MAX_VALUE_BYTES
from workloads.reference.connection_state import Garble
from workloads.reference.dialogue.broker_model import (
    COMMITTED,
    BrokerModel,
    ClientLimits,
    ModelMessage,
    ModelSubscription,
    ModelTransaction,
)

BEYOND = "beyond a limit"
"""Prefix of the reason of a command that exceeds one of ``Limits``."""
_IN_USE = "SUBSCRIBE to what is in use"
_NO_FRAMES = (f"{BEYOND}: a body", f"{BEYOND}: headers")
"""Reasons of commands whose bytes a broker does not parse to a frame."""
MAX_NAME_CHARS, MAX_XID_CHARS = 200, 128
"""Upper bounds of the characters of a name, and of an XID."""
_UNTESTED_BYTES, _UNTESTED_HEADERS = 1 << 16, 100
"""Limits of at least this many bytes, or headers, are not exceeded on purpose."""
_GARBLES: tuple[tuple[str, Garble], ...] = (
    ("an unknown command", lambda frame: frame.replace(b"SEND\n", b"SHOUT\n", 1)),
    ("a header line without a colon", lambda frame: frame.replace(b"SEND\n", b"SEND\nx-none\n", 1)),
    ("a header without a name", lambda frame: frame.replace(b"SEND\n", b"SEND\n:nameless\n", 1)),
    ("an undefined escape", lambda frame: frame.replace(b"SEND\n", b"SEND\nx-tab:\\t\n", 1)),
    ("a header that is not UTF-8", lambda frame: frame.replace(b"SEND\n", b"SEND\nx-latin:\xe9\n", 1)),
    ("NUL in a header", lambda frame: frame.replace(b"SEND\n", b"SEND\nx-nul:\0\n", 1)),
    ("a length that is no number", lambda frame: frame.replace(b"content-length:", b"content-length:x", 1)),
    ("a body longer than it says", lambda frame: frame.replace(b"never", b"never again", 1)),
)


@dataclass(frozen=True)
class InvalidCommand:
    """A command, and the reason (``why``) of its refusal.

    ``always``: it is invalid in any state of the client; ``gap``: its sequence number skips one; ``garble``: a function
    that corrupts its bytes; ``asks``: it asks for a receipt; ``settled``: the message to acknowledge first, and the id
    by which to do so.
    """

    why: str
    command: str
    headers: Mapping[str, str]
    always: bool = False
    gap: bool = False
    body: bytes = b""
    garble: Garble | None = None
    asks: bool = True
    settled: tuple[str, ModelSubscription, ModelMessage] | None = None

    @property
    def named(self) -> bool:
        """Return whether a broker can identify the requested receipt: the command is a parsable frame, though a wrong
        one."""
        return self.garble is None and self.asks and self.why not in _NO_FRAMES

    @property
    def items(self) -> tuple[str, ...]:
        """Return the counted items that the command uses."""
        special = {_IN_USE: ("durable-in-use",), BEYOND: ("beyond-limits",)}.get(self.why.partition(":")[0], ())
        malformed = ("malformed",) if self.garble is not None else ()
        return ("refused-commands", *special, *malformed, *(("number-left-out",) if self.gap else ()))


@dataclass(frozen=True)
class About:
    """The client's state that commands depend on. ``mine`` is the prefix of all its private names; ``ended`` are the
    outcomes of branches that the broker remembers; ``branches``: the broker has topics and branches, else exchanges;
    ``reliable``: frames are numbered.
    """

    mine: str
    model: BrokerModel
    limits: ClientLimits
    ended: Mapping[str, str]
    topics: tuple[str, ...]
    branches: bool
    reliable: bool

    @property
    def queue(self) -> str:
        """Return a queue."""
        return f"/queue/{self.mine}.a"

    @property
    def free(self) -> str:
        """Return a queue that has no consumer."""
        return f"/queue/{self.mine}.free"


def invalid_commands(about: About) -> list[InvalidCommand]:
    """Return all commands that can't be carried out now."""
    found = [*_always(about), *_malformed(about), *_of_subscriptions(about), *_of_transactions(about),
             *_beyond_limits(about)]
    if about.branches:
        found += _of_branches(about)
    if about.reliable:
        found.append(InvalidCommand("a frame whose number leaves one out", "SEND", {"destination": about.queue},
                                    gap=True))
        found.append(InvalidCommand("a frame without its number", "SEND", {"destination": about.queue}, always=True,
                                    body=b"never", garble=lambda frame: frame.replace(b"\nx-seq:", b"\nx-number:", 1)))
    else:
        found.append(InvalidCommand("RECEIVED on a connection that is not reliable", "RECEIVED", {"x-received": "0"},
                                    always=True))
    return found


def _always(about: About) -> Iterator[InvalidCommand]:
    none = {"transaction": "never begun"}
    commands: list[tuple[str, str, dict[str, str]]] = [
        ("ACK of nothing", "ACK", {"id": "999999999-1"}),
        ("NACK of nothing", "NACK", {"id": "none"}),
        ("COMMIT of what was not begun", "COMMIT", none),
        ("ABORT of what was not begun", "ABORT", none),
        ("SEND in what was not begun", "SEND", {"destination": about.queue, **none}),
        ("SEND to no name", "SEND", {"destination": "/queue/"}),
        ("SEND to nowhere", "SEND", {}),
        ("SUBSCRIBE with an unknown ack", "SUBSCRIBE", {"id": "9", "destination": about.queue, "ack": "sometimes"}),
        ("SUBSCRIBE with no window", "SUBSCRIBE", {"id": "9", "destination": about.free, "x-prefetch": "0"}),
        ("UNSUBSCRIBE of nothing", "UNSUBSCRIBE", {"id": "never"}),
        ("BEGIN without a name", "BEGIN", {}),
        ("BEGIN with a name that is too long", "BEGIN", {"transaction": "t" * (MAX_NAME_CHARS + 1)}),
        ("SUBSCRIBE with an id that is too long", "SUBSCRIBE",
         {"id": "i" * (MAX_NAME_CHARS + 1), "destination": about.free}),
        ("ACK with an id that is too long", "ACK", {"id": "1" * (MAX_NAME_CHARS + 1)}),
        ("CONNECT again", "CONNECT", {"accept-version": "1.2"}),
        ("ACK without an id", "ACK", {}),
        ("SUBSCRIBE without an id", "SUBSCRIBE", {"destination": about.free}),
        ("SUBSCRIBE with a window that is no number", "SUBSCRIBE",
         {"id": "9", "destination": about.free, "x-prefetch": "1e3"}),
        ("UNSUBSCRIBE without an id", "UNSUBSCRIBE", {}),
        ("SUBSCRIBE to values", "SUBSCRIBE", {"id": "9", "destination": f"/last-value/{about.mine}"}),
        ("READ of no key", "READ", {"destination": f"/last-value/{about.mine}"}),
        *(("SEND to what is no name", "SEND", {"destination": destination}) for destination in (
            f"{about.queue} and", "/queue/durable:guest:d", "/queue/last-value:v", f"/exchange/{about.mine}",
            f"{about.queue}{'x' * (MAX_NAME_CHARS + 1 - len(about.queue))}")),
        *(("SEND of what is no value", "SEND", {"destination": f"/last-value/{about.mine}", **wrong}) for wrong in (
            {}, {"x-key": "k", "x-expected": "any"}, {"x-key": "k" * (MAX_NAME_CHARS + 1)},
            {"x-key": "k", "transaction": "t"})),
    ]
    if about.branches:
        topic = f"/topic/{about.mine}"
        commands += [
            ("COMMIT of an unknown XID", "COMMIT", {"x-xid": f"{about.mine}.never"}),
            ("UNSUBSCRIBE of no durable one", "UNSUBSCRIBE", {"x-durable": f"{about.mine}-never"}),
            ("PREPARE without a name", "PREPARE", {}),
            ("COMMIT of two things", "COMMIT", {"transaction": "never begun", "x-xid": f"{about.mine}.never"}),
            *(("SEND to what is no topic", "SEND", {"destination": destination})
              for destination in (f"{topic}.*", f"{topic}.>", f"{topic}..a", f"{topic}.")),
            *(("SUBSCRIBE to what is no pattern", "SUBSCRIBE", {"id": "9", "destination": destination})
              for destination in (f"{topic}.>.a", f"{topic}..a", f"{topic}.a*")),
            *(("SUBSCRIBE by what is no name", "SUBSCRIBE", {"id": "9", "destination": topic, "x-durable": name})
              for name in ("a b", "a:b", "", "d" * (MAX_NAME_CHARS + 1))),
            *(("SEND to what other designs have", "SEND", {"destination": destination, "x-request": "list"})
              for destination in (MANAGEMENT, TOPIC_MANAGER, f"{EXCHANGE_PREFIX}{about.mine}/k")),
            ("SUBSCRIBE to a queue for good", "SUBSCRIBE", {"id": "9", "destination": about.free, "x-durable": "d"}),
            *(("BEGIN with what is no XID", "BEGIN", {"transaction": "9", "x-xid": xid})
              for xid in ("a b", "x" * (MAX_XID_CHARS + 1), "")),
        ]
    else:
        commands.append(("SEND to no exchange", "SEND", {"destination": f"{EXCHANGE_PREFIX}{about.mine}-none/k"}))
    for why, command, headers in commands:
        yield InvalidCommand(why, command, headers, always=True)
    value = {"destination": f"/last-value/{about.mine}", "x-key": "k"}
    if about.limits.max_body > MAX_VALUE_BYTES:
        yield InvalidCommand("SEND of what is no value", "SEND", value, always=True, body=bytes(MAX_VALUE_BYTES + 1))
    yield InvalidCommand("READ without a receipt", "READ", value, always=True, asks=False)
    if about.branches:
        yield InvalidCommand("RECOVER without a receipt", "RECOVER", {}, always=True, asks=False)


def _malformed(about: About) -> Iterator[InvalidCommand]:
    """Yield commands whose bytes violate the frame format of STOMP 1.2."""
    for why, garble in _GARBLES:
        yield InvalidCommand(f"a frame with {why}", "SEND", {"destination": about.queue}, always=True, body=b"never",
                        garble=garble)


def _of_subscriptions(about: About) -> Iterator[InvalidCommand]:
    for name, each in about.model.subscriptions.items():
        yield InvalidCommand("SUBSCRIBE again", "SUBSCRIBE", {"id": name, "destination": about.free})
        if each.durable:
            durable = {"destination": f"/topic/{each.box.pattern}", "x-durable": each.durable}
            yield InvalidCommand(_IN_USE, "SUBSCRIBE", {"id": "9", **durable})


def _of_transactions(about: About) -> Iterator[InvalidCommand]:
    for name, each in about.model.transactions.items():
        this = {"transaction": name}
        yield InvalidCommand("BEGIN again", "BEGIN", this)
        for end in ("COMMIT", "PREPARE") if each.xid else ("COMMIT",):
            for item in each.items:
                if item.subscription is None or item.message is None:
                    continue
                ident = next((key for key, held in item.subscription.held.items() if held is item.message), None)
                if ident is not None:
                    yield InvalidCommand(f"{end} of what was acknowledged meanwhile", end, this,
                                    settled=(ident, item.subscription, item.message))


def _of_branches(about: About) -> Iterator[InvalidCommand]:
    model = about.model
    for xid, outcome in about.ended.items():
        other = "ABORT" if outcome == COMMITTED else "COMMIT"
        yield InvalidCommand(f"{other} of what was {outcome}", other, {"x-xid": xid})
        yield InvalidCommand("BEGIN with an XID that has ended", "BEGIN", {"transaction": "9", "x-xid": xid})
    for xid in model.prepared:
        yield InvalidCommand("BEGIN with an XID that is prepared", "BEGIN", {"transaction": "9", "x-xid": xid})
    for each in model.transactions.values():
        if each.xid:
            yield InvalidCommand("COMMIT of what is not prepared", "COMMIT", {"x-xid": each.xid})
            yield InvalidCommand("BEGIN with an XID that has begun", "BEGIN", {"transaction": "9", "x-xid": each.xid})
        else:
            yield InvalidCommand("PREPARE of no branch", "PREPARE", {"transaction": each.name})


def _beyond_limits(about: About) -> Iterator[InvalidCommand]:
    model, limits = about.model, about.limits
    if len(model.transactions) >= limits.max_transactions:
        yield InvalidCommand(f"{BEYOND}: BEGIN", "BEGIN", {"transaction": "9"})
    if len(model.subscriptions) >= limits.max_subscriptions:
        yield InvalidCommand(f"{BEYOND}: SUBSCRIBE", "SUBSCRIBE", {"id": "9", "destination": about.free})
    for name, each in model.transactions.items():
        this = {"transaction": name}
        if len(each.items) >= limits.max_transaction_items:
            yield InvalidCommand(f"{BEYOND}: SEND in a transaction", "SEND", {"destination": about.queue, **this})
        if limits.max_transaction_bytes < min(_UNTESTED_BYTES, limits.max_body):
            yield InvalidCommand(f"{BEYOND}: bytes of a transaction", "SEND", {"destination": about.queue, **this},
                            body=bytes(limits.max_transaction_bytes + 1))
        if not may_end(about.model, about.limits, each):
            for end in ("COMMIT", "PREPARE") if each.xid else ("COMMIT",):
                yield InvalidCommand(f"{BEYOND}: {end}", end, this)
    if limits.max_body < _UNTESTED_BYTES:
        yield InvalidCommand(f"{BEYOND}: a body", "SEND", {"destination": about.queue}, body=bytes(limits.max_body + 1))
    if limits.max_headers < _UNTESTED_HEADERS:
        many = {f"x-{place}": "" for place in range(limits.max_headers)}
        yield InvalidCommand(f"{BEYOND}: headers", "SEND", {"destination": about.queue, **many})
    for topic in about.topics if about.branches else ():
        if model.fanout([topic]) > limits.max_fanout:
            yield InvalidCommand(f"{BEYOND}: SEND to a topic", "SEND", {"destination": topic})


def may_end(model: BrokerModel, limits: ClientLimits, transaction: ModelTransaction) -> bool:
    """Return whether a transaction creates no more messages than one command may."""
    return model.fanout(item.destination for item in transaction.items if item.kind == "SEND") <= limits.max_fanout
