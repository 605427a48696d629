"""The surface: the features that systems offer to clients, with the workloads that use and the checks that judge each.

A run's record counts the features that its clients used (``surface`` in run.json): items that clients count themselves,
and ``f:NAME``, the operations of each function that ended ``ok``. An item is *judged* in a run if it was used there,
and if every check of it by which the run is judged reached a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stormproof.contracts.check import UNKNOWN
from workloads.catalog import WORKLOADS
from workloads.feature_coverage import FEATURE_COVERAGE

BROKERS = ("standalone", "joram", "qpid", "fiorano")
"""Designs that leave messages to the reference engine."""
RELIABLE = ("standalone", "joram", "fiorano")
"""The designs among them that have reliable connections."""
DIALOGUE = "dialogue"
"""The workload, and the check, for all features that a model of the broker covers."""
_BY_MODEL = frozenset({
    "body-empty", "body-binary", "body-text", "body-large", "headers-escaped", "headers-many", "send-in-transaction",
    "abort-of-sends", "ack-client-individual", "ack-client", "ack-cumulative", "window", "window-of-one", "nack",
    "nack-cumulative", "unsubscribe", "unsubscribe-unacknowledged", "ack-in-transaction", "nack-in-transaction",
    "abort-of-acks", "abort-of-nacks", "refused-commands", "durable-deleted", "xa-abort-prepared", "xa-commit-again",
    "xa-one-phase", "qpid-direct", "qpid-fanout", "qpid-topic", "headers-repeated", "durable-changed", "durable-in-use",
    "several-subscriptions", "number-left-out", "closed-for-idleness",
    "taken-over", "slow-reader", "qpid-pages", "qpid-refused", "ack-auto-plain", "transient-overflow", "beyond-limits",
    "full-broker", "no-receipt", "malformed", "other-connections", "headers-forged", "full-connection",
    "strangers", "values",
})
"""The items that dialogues also use and judge."""
_QUEUES = ("queue", "consume-last", "clustered", "store-and-forward", "transaction")
_TOPICS = ("topic", "clustered-topic")
_PAGE = "stomp.md"
_TAKEN = ("lost", "duplicated", "phantom")


@dataclass(frozen=True)
class Feature:
    """One feature that clients may use. ``page`` (of docs/) describes it. ``workloads`` are those that use it; none if
    it is empty. ``shown`` are the names under which runs count it, by default the item's name. Only in a run with these
    ``settings`` do the names mean this item."""

    name: str
    told: str
    page: str
    systems: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def used(self, info: Mapping[str, Any]) -> int:
        """Return the number of times that a run, described by its run.json, has used the item."""
        test = info.get("test") or {}
        options = test.get("options") or {}
        if test.get("workload") not in self.workloads or any(options.get(name) != it for name, it in self.settings):
            return 0
        counts = info.get("surface") or {}
        return sum(int(counts.get(name, 0)) for name in self.shown or (self.name,))


_OF_TOPICS = {"lost": "topic-lost", "duplicated": "topic-duplicated", "phantom": "topic-phantom"}
"""Check of queues -> the check of topics that judges the same property."""


def _queue(name: str, told: str, *checks: str, systems: tuple[str, ...] = BROKERS, shown: tuple[str, ...] = (),
           topics: bool = True) -> Feature:
    """Return an item of queues. With ``topics``, topics share it."""
    checks += ("atomic",) if "lost" in checks else ()  # which judges losses in the parts of transactions
    judged = (*checks, *(_OF_TOPICS[check] for check in checks if topics and check in _OF_TOPICS))
    return Feature(name, told, _PAGE, systems, (*_QUEUES, *(_TOPICS if topics else ())), judged, shown)


def _nobody(name: str, told: str, page: str = _PAGE, systems: tuple[str, ...] = BROKERS) -> Feature:
    return Feature(name, told, page, systems)


def _with_dialogues(item: Feature) -> Feature:
    if item.name not in _BY_MODEL:
        return item
    return replace(item, workloads=(*item.workloads, DIALOGUE), checks=(*item.checks, DIALOGUE))


def _by(workload: str, name: str, told: str, shown: str, checks: tuple[str, ...], systems: tuple[str, ...],
        page: str = _PAGE, **settings: Any) -> Feature:
    return Feature(name, told, page, systems, (workload,), checks, tuple(f"f:{f}" for f in shown.split()),
                tuple(settings.items()))  # fmt: skip


_TOPIC = ("topic-lost", "topic-phantom", "topic-duplicated", "agreement")
_TX = ("atomic", "exactly-once", "tx-phantom")

ITEMS: tuple[Feature, ...] = tuple(_with_dialogues(item) for item in (
    _queue("send", "SEND with a receipt", *_TAKEN, shown=("send", "f:enqueue"), topics=False),
    _queue("body-empty", "a body without a byte", "content"),
    _queue("body-binary", "a body with NUL and all other bytes", "content"),
    _queue("body-text", "a body of UTF-8 in several lines", "content"),
    _queue("body-large", "a body of 5 to 140 KB: more than a read, more than a piece of a state transfer", "content"),
    _queue("headers-escaped", "headers with colons, ends of lines, backslashes, blanks, or no text", "content"),
    _queue("headers-many", "more than 80 headers", "content"),
    _nobody("headers-repeated", "a header that is repeated: the first counts"),
    _nobody("headers-forged", "a SEND with headers that only the broker may set on MESSAGE"),
    _queue("send-in-transaction", "BEGIN, SEND, COMMIT", *_TAKEN, topics=False),
    _queue("abort-of-sends", "BEGIN, SEND, ABORT: what was sent never comes", "phantom", topics=False),
    _queue("ack-client-individual", "SUBSCRIBE with ack:client-individual", "duplicated", "lost",
           shown=("ack-client-individual", "f:dequeue", "f:receive")),
    _queue("ack-client", "SUBSCRIBE with ack:client", "duplicated", "lost"),
    _queue("ack-cumulative", "an ACK that is of several messages", "duplicated", "lost"),
    _queue("ack-auto", "SUBSCRIBE with ack:auto, RECEIVED", "duplicated", "lost", systems=RELIABLE),
    _nobody("ack-auto-plain", "ack:auto on a connection that is not reliable"),
    _queue("window", "x-prefetch of 2 to 64", "subscription"),
    _queue("window-of-one", "x-prefetch of one", "subscription"),
    _queue("nack", "NACK: the message goes back, and says so when it comes again", "lost", "redelivery"),
    _queue("nack-cumulative", "with ack:client, a NACK of several messages", "lost", "redelivery"),
    _queue("unsubscribe", "UNSUBSCRIBE, and SUBSCRIBE with another id", "subscription", "lost"),
    _queue("unsubscribe-unacknowledged", "UNSUBSCRIBE with messages that were not acknowledged", "lost", "redelivery"),
    _queue("ack-in-transaction", "BEGIN, ACK, COMMIT", "duplicated", "lost"),
    _queue("nack-in-transaction", "BEGIN, NACK, COMMIT", "lost", "redelivery"),
    _queue("abort-of-acks", "BEGIN, ACK, ABORT: the message still awaits its ACK", "lost", "duplicated"),
    _queue("abort-of-nacks", "BEGIN, NACK, ABORT", "lost", "duplicated"),
    _queue("several-subscriptions", "two subscriptions of one connection to a queue", "lost", "duplicated",
           "subscription", topics=False),
    _queue("refused-commands", "a command that is refused ends its connection, and has no effect", "refusal"),
    _nobody("malformed", "bytes that are no frame: unknown commands, lines, escapes, lengths"),
    _nobody("no-receipt", "commands that ask for no receipt: they are carried out, or over a reliable connection their "
            "refusal is noticed"),
    _nobody("other-connections", "what another connection of the same login may, and may not, do"),
    _nobody("values", "values of up to 16 KiB, written with and without a condition, and read, with their versions"),
    _nobody("strangers", "logins with another passcode, login or version, and frames before a login, are refused, with "
            "what follows them; right logins are not"),
    _nobody("full-connection", "a connection that has as many bytes in flight as it may: nothing comes before some are "
            "acknowledged"),
    _nobody("number-left-out", "a frame of a reliable connection whose number leaves one out", systems=RELIABLE),
    _nobody("closed-for-idleness", "a reliable connection of which nothing is heard for `idle_timeout`",
            systems=RELIABLE),
    _nobody("taken-over", "a second CONNECT of a reliable connection that is in use", systems=RELIABLE),
    _nobody("slow-reader", "a client that reads nothing for a while, with bodies of 140 KB waiting for it"),
    _nobody("transient-overflow", "a transient subscription that holds more messages than it may", systems=RELIABLE),
    _nobody("beyond-limits", "commands beyond `max_transactions`, `max_subscriptions`, `max_transaction_items`, "
            "`max_transaction_bytes`, `max_fanout`, `max_headers`, `max_body`", systems=RELIABLE),
    _nobody("full-broker", "a broker with `max_messages`, `max_queues` or `max_prepared`, whosever these are",
            systems=RELIABLE),
    _by("topic", "publish", "SEND to a topic", "publish", _TOPIC, RELIABLE),
    _by("topic", "durable", "a durable subscription: SUBSCRIBE with x-durable, UNSUBSCRIBE, again", "attach detach",
        ("topic-lost", "topic-order"), RELIABLE),
    _by("topic", "transient", "a transient subscription", "listen", ("gaps", "agreement"), RELIABLE),
    Feature("durable-deleted", "UNSUBSCRIBE with x-durable", _PAGE, RELIABLE, _TOPICS, ("topic-lost", "topic-phantom")),
    _nobody("durable-changed", "SUBSCRIBE of a durable subscription's name to other topics", systems=RELIABLE),
    _nobody("durable-in-use", "SUBSCRIBE of a durable subscription that another connection has", systems=RELIABLE),
    Feature("topic-in-transaction", "BEGIN, SEND to a topic, COMMIT", _PAGE, RELIABLE, _TOPICS, _TOPIC),
    _by("transaction", "transaction", "several SENDs in one transaction", "commit", _TX, BROKERS, transactions="plain"),
    _by("transaction", "abort", "ABORT of several SENDs", "abort", ("atomic",), BROKERS),
    _by("transaction", "move", "ACK and SEND in one transaction", "move", ("exactly-once",), BROKERS),
    _by("transaction", "xa", "BEGIN with x-xid, PREPARE, COMMIT", "commit", (*_TX, "prepared"), RELIABLE,
        transactions="xa"),
    _by("transaction", "xa-recover", "RECOVER, and COMMIT or ABORT of what a lost client prepared", "recover rollback",
        ("atomic", "prepared"), RELIABLE, transactions="xa"),
    Feature("abort-of-move", "ABORT of SEND and ACK together", _PAGE, BROKERS, ("transaction",), ("exactly-once",)),
    Feature("xa-abort-prepared", "ABORT of a prepared branch: what it acknowledged goes back", _PAGE, RELIABLE,
         ("transaction",), ("atomic", "exactly-once", "prepared")),
    Feature("xa-commit-again", "COMMIT of a branch that was committed: it is confirmed again", _PAGE, RELIABLE,
         ("transaction",), ("prepared",)),
    Feature("xa-one-phase", "COMMIT of a branch that is not prepared", _PAGE, RELIABLE, ("transaction",), _TX),
    _by("register", "last-value", "SEND to /last-value/NAME, READ", "read write", ("register",), BROKERS),
    _by("register", "last-value-expected", "SEND with x-expected", "cas", ("register",), BROKERS),
    *(Feature(f"value-{kind}", told, _PAGE, BROKERS, ("register",), ("register",)) for kind, told in (
        ("large", "values of 4 to 16 KB"), ("binary", "values with NUL and all other bytes"),
        ("key-odd", "keys with colons, backslashes, blanks"))),
    _by("clustered", "clustered-queue", "a queue spread over servers", "enqueue dequeue", _TAKEN, ("joram",),
        "designs/joram.md"),
    _by("clustered-topic", "clustered-topic", "a topic spread over servers", "publish receive", _TOPIC, ("joram",),
        "designs/joram.md"),
    _by("store-and-forward", "send-to-server", "SEND to a queue of another server", "enqueue", _TAKEN, ("joram",),
        "designs/joram.md"),
    _by("store-and-forward", "take-from-server", "SUBSCRIBE to a queue of another server", "dequeue", _TAKEN,
        ("joram",), "designs/joram.md", consume_at="own-server"),
    _by("processing", "collocated", "a client inside the broker", "dequeue", ("lost", "duplicated", "at-most-once"),
        ("joram", "standalone"), "designs/joram.md"),
    _by("configuration", "qpid-objects", "queues, exchanges and bindings: create, delete, bind, unbind, list",
        "create destroy link unlink look", ("metadata",), ("qpid",), "designs/qpid.md"),
    *(Feature(f"qpid-{kind}", f"SEND to a {kind} exchange", "designs/qpid.md", ("qpid",), ("queue", "transaction"),
           ("lost", "atomic", "duplicated")) for kind in ("direct", "fanout", "topic")),
    Feature("qpid-unbind", "the end of one of several bindings", "designs/qpid.md", ("qpid",), ("queue", "transaction"),
         ("lost", "atomic")),
    Feature("qpid-declare", "SEND with x-declare", "designs/qpid.md", ("qpid",), ("queue", "transaction"),
         ("lost", "atomic")),
    Feature("qpid-replicate", "queues whose messages, or configuration alone, are not replicated", "designs/qpid.md",
         ("qpid",), (DIALOGUE,), ("invariants",)),
    _nobody("qpid-pages", "lists that come in pages", "designs/qpid.md", ("qpid",)),
    _nobody("qpid-refused", "requests about objects that can't be carried out", "designs/qpid.md", ("qpid",)),
    _by("subscriptions", "icestorm-objects", "topics, subscribers and links: create, destroy, subscribe, link, list",
        "create destroy subscribe unsubscribe link unlink look", ("metadata",), ("icestorm",), "designs/icestorm.md"),
    _by("events", "icestorm-publish", "events by replicated, non-replicated and single-endpoint publishers", "publish",
        ("event-lost", "event-order"), ("icestorm",), "designs/icestorm.md"),
    Feature("icestorm-cost", "links with a cost, events with x-cost", "designs/icestorm.md", ("icestorm",), ("events",),
         ("event-lost", "topic-phantom")),
    *(Feature(f"event-{kind}", told, "designs/icestorm.md", ("icestorm",), ("events",), ("content",), shown)
      for kind, told, shown in (
          ("bodies", "events with bodies of all kinds", ("body-empty", "body-binary", "body-text", "body-large")),
          ("headers", "events with headers of all kinds", ("headers-escaped", "headers-many")))),
    Feature("topic-dialogue", "every request to the topic manager about topics of one's own", "designs/icestorm.md",
         ("icestorm",), ("topic-dialogue",), (DIALOGUE,)),
    Feature("icestorm-retries", "subscribers with a retryCount that fail, and are removed when it is used up",
         "designs/icestorm.md", ("icestorm",), ("topic-dialogue",), (DIALOGUE,)),
    Feature("icestorm-pages", "lists that come in pages", "designs/icestorm.md", ("icestorm",), ("topic-dialogue",),
         (DIALOGUE,)),
    _by("security", "fiorano-rights", "principals, rights and administered objects", "grant revoke create destroy look",
        ("metadata",), ("fiorano", "standalone"), "designs/fiorano.md"),
    Feature("other-logins", "rights and passcodes of a login that change while it sends, takes, prepares, recovers",
         "designs/fiorano.md", ("fiorano", "standalone"), (DIALOGUE,), (DIALOGUE,),
         settings=(("visitors", True),)),
    _by("offline-send", "durable-connection", "a connection whose client keeps what it can't send", "offline online",
        ("lost", "transfer-order"), ("fiorano", "standalone"), "stomp.md#the-durable-connection"),
))  # fmt: skip
"""All items, in the order of the pages."""


def used_and_judged(info: Mapping[str, Any], decided: Mapping[str, str]) -> dict[str, tuple[int, bool]]:
    """Return item -> how often a run used it, and whether it was judged. Items that the run did not use are left out.

    ``info`` is run.json. ``decided`` has the verdict of each check that affects the run's verdict.
    """
    found = {}
    for item in ITEMS:
        if count := item.used(info):
            verdicts = [decided[check] for check in item.checks if check in decided]
            found[item.name] = count, bool(verdicts) and UNKNOWN not in verdicts
    return found


def items_of(systems: Iterable[str], workloads: Iterable[str]) -> list[Feature]:
    """Return the items of these systems that these workloads can use, or that no workload uses."""
    those, work = set(systems), set(workloads)
    return [item for item in ITEMS if those & {*item.systems} and (not item.workloads or work & {*item.workloads})]


def with_all_features(workload: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, extended so that clients use all features of brokers unless the settings already decide
    this."""
    declared = {option.name for option in WORKLOADS.load(workload).options}
    return {**({FEATURE_COVERAGE.name: "true"} if FEATURE_COVERAGE.name in declared else {}), **settings}


@dataclass
class Used:
    """Counts of an item: runs that used it, runs that judged it, and its uses in all."""

    runs: int = 0
    judged: int = 0
    times: int = 0


@dataclass
class CoverageTable:
    """The used and judged features of the systems, summed over runs."""

    items: dict[str, Used] = field(default_factory=dict)

    @classmethod
    def of(cls, systems: Iterable[str], workloads: Iterable[str]) -> CoverageTable:
        """Return the table for campaigns with these systems and workloads, before the first run."""
        return cls({item.name: Used() for item in items_of(systems, workloads)})

    def add(self, used: Mapping[str, tuple[int, bool]]) -> None:
        """Add one more run, in the form that ``used_and_judged`` returns."""
        for name, (times, judged) in used.items():
            item = self.items.setdefault(name, Used())
            item.runs += 1
            item.judged += bool(judged)
            item.times += times

    def line(self) -> str:
        """Return a line on used, judged and missed items; empty if there are no items."""
        if not self.items:
            return ""
        judged = sum(item.judged > 0 for item in self.items.values())
        missed = ", ".join(f"{name}{' (used)' if item.runs else ''}"
                           for name, item in self.items.items() if not item.judged)  # fmt: skip
        return f"surface: {judged} of {len(self.items)} items used and judged{'; not: ' if missed else ''}{missed}"

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the table as data. Items that are not covered have zeros."""
        return {name: dict(vars(item)) for name, item in self.items.items()}

    def page(self) -> str:
        """Return the table as Markdown, items that were not judged first."""
        told = {item.name: item for item in ITEMS}
        lines = ["# The surface: what was used and judged", "", self.line(), "",
                 "| item | what clients do | runs that judged it | runs that used it | times |",
                 "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for name, item in sorted(self.items.items(), key=lambda each: each[1].judged > 0):
            words = told[name].told if name in told else ""
            lines.append(f"| `{name}` | {words} | {item.judged or '**none**'} | {item.runs} | {item.times} |")
        return "\n".join(lines) + "\n"


def coverage_page() -> str:
    """Return the content of docs/reference/feature-coverage.md."""
    lines = ["# Feature coverage", "", "Made by `make docs` from `harness/reference/feature_coverage.py`.", ""]
    lines += _INTRODUCTION.strip().splitlines()
    lines += ["", "| item | what clients do | systems | workloads | checks |", "| --- | --- | --- | --- | --- |"]
    for item in ITEMS:
        used = ", ".join(f"`{name}`" for name in item.workloads) or "**none**"
        with_ = "".join(f", {name}={value}" for name, value in item.settings)
        checks = ", ".join(f"`{name}`" for name in item.checks) or "**none**"
        told = f"[{item.told}](../{item.page})"
        lines.append(f"| `{item.name}` | {told} | {', '.join(item.systems)} | {used}{with_} | {checks} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """
The features that the designs offer to clients, with the workloads that use them and the checks that judge them. With
`--set surface=true` the clients of the workloads that have this setting use more than the basic features. Each run
draws a part of the features, each process its way to consume, and each message its content. These draws have separate
random streams: a seed without the setting gives the same run as before. The checks `content`, `subscription`,
`redelivery` and `refusal` judge the result, in addition to the checks of the workload ([checks.md](../checks.md)).

The setting is on by default in `stormproof simulate`, and in the simulated runs of a night that must be valid. Both
report at the end the items that their runs have *used and judged*, and the others. `--json` and the folder of a night
(`surface.md`) have the table. An item counts as judged in a run if the run used it, and each of its checks that judge
the run came to a verdict. *None*: no workload uses it yet.

A new item needs a line in `ITEMS`, a name under which clients count it (`FeatureCoverage.use`), and a draw
(`workloads/feature_coverage.py`, `workloads/reference/consumer.py`). It also needs a bug in `nodes/reference/bugs/`
that only its check can catch.
"""
