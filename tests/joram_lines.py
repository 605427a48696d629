"""The main line of each row of HA Joram: runs, and what is to be seen of them besides their verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.run.settings import make_test
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER, node_logs
from stormproof.test import Test

RATE, SEED = 120.0, 4
COMMON = {"fault_duration": "1.5", "fault_gap": "0.3", "idle_timeout": "1", "min_ok": "10"}
GROWTH = {"spares": "1", "log_keep": "20", "kill_kind": "master"}
DESCRIPTOR = Path(__file__).parent / "joram" / "a3servers.xml"
"""The descriptor of section 4.6.3, letter by letter."""


@dataclass(frozen=True)
class Ended:
    """The folder of a run that has ended, and what its verdict says."""

    folder: Path
    verdict: str
    sentence: str
    anomalies: Mapping[str, int]

    @property
    def logs(self) -> dict[str, str]:
        """Node -> its log."""
        return {path.stem: path.read_text() for path in node_logs(self.folder)}

    def tellers(self, *words: str) -> list[str]:
        """The nodes in whose logs one line has all these words."""
        return [node for node, log in self.logs.items()
                if any(all(word in line for word in words) for line in log.splitlines())]


def served_by_two(run: Ended) -> None:
    assert len(run.tellers("promoted: serving as master")) >= 2


def grew(form: str) -> Callable[[Ended], None]:
    """A fourth replica was given the whole state in that form, and became one of the group."""

    def check(run: Ended) -> None:
        assert run.tellers("state transfer begin", "to=n4", f"form={form}")
        assert "n4" in run.tellers("state transfer end", "source=")
        assert run.tellers("group changed", "members=n1,n2,n3,n4")

    return check


def processed(run: Ended) -> None:
    """The client inside the broker moved with the master, as did the services, which began once for the first time."""
    grew("held-back")(run)
    assert len(run.tellers("collocated connection opened")) >= 2
    assert run.tellers("former collocated connection cleaned")
    assert len(run.tellers("service initialised", "first_time=True")) == 1
    assert run.tellers("service initialised", "first_time=False")
    assert set(run.tellers("service initialised")) == set(run.tellers("promoted: serving as master"))


def forwarded(run: Ended) -> None:
    """The local server n4 found the master, and the next one; nobody but masters let it in."""
    served_by_two(run)
    assert run.tellers("network up", "to=0") == ["n4"]
    let_in = run.tellers("network up", "of=1")
    assert len(let_in) >= 2
    assert set(let_in) <= set(run.tellers("promoted: serving as master"))


def delivered_to_own_servers(run: Ended) -> None:
    """The servers had connections both ways: messages and acknowledgements one way, deliveries the other."""
    served_by_two(run)
    masters = set(run.tellers("promoted: serving as master"))
    assert run.tellers("network up", "to=0") == ["n4"] == run.tellers("network up", "of=0")
    assert set(run.tellers("network up", "to=1")) <= masters and len(run.tellers("network up", "to=1")) >= 2


def clustered(run: Ended) -> None:
    """Both servers sent messages to the other one, and the first one had two masters."""
    served_by_two(run)
    assert run.tellers("network up", "to=1") and run.tellers("network up", "to=0")


def clustered_topics(run: Ended) -> None:
    """Each element had subscribers and a producer, and sent what was published there to the other one."""
    clustered(run)
    for nodes in ({"n1", "n2"}, {"n3", "n4"}):
        assert nodes & set(run.tellers("client connected")) and nodes & set(run.tellers("network up", "to="))


def both_sides_served(run: Ended) -> None:
    assert run.anomalies.get("lost", 0) + run.anomalies.get("duplicated", 0) > 0
    assert len(run.tellers("promoted: serving as master")) >= 2


@dataclass(frozen=True)
class Line:
    """A run, and what is to be seen of it: in the sentence of the verdict, and by ``check``."""

    workload: str
    says: str
    check: Callable[[Ended], None]
    nemesis: str = "kill"
    nodes: int = 3
    time_limit: float = 4.5
    settings: Mapping[str, str] = field(default_factory=lambda: {"kill_kind": "master"})
    verdict: str = "valid"

    def words(self) -> list[str]:
        """The command's arguments, but for backend and store."""
        pairs = {**COMMON, **self.settings}.items()
        settings = [word for name, value in pairs for word in ("--set", f"{name}={value}")]
        return ["--system", "joram", "--workload", self.workload, "--nemesis", self.nemesis, "--nodes", f"{self.nodes}",
                "--time-limit", f"{self.time_limit}", "--rate", f"{RATE:g}", "--seed", f"{SEED}", *settings]

    def test(self, backend: str, seed: int) -> Test:
        """The same as a test, with another seed."""
        return make_test(system="joram", workload=self.workload, nemesis=self.nemesis, backend=backend,
                         nodes=self.nodes, time_limit=self.time_limit, rate=RATE, seed=seed,
                         settings={**COMMON, **self.settings})  # fmt: skip

    def look(self, run: Ended) -> None:
        """Whether it went as it should."""
        assert run.verdict == self.verdict, run.sentence
        assert self.says in run.sentence
        faults = read_ledger(run.folder / LEDGER)
        assert {window.fault for window in faults} == set(self.nemesis.split(","))
        assert all(window.confirmed for window in faults)
        self.check(run)


def _growing(**settings: str) -> dict[str, Any]:
    return {"nemesis": "kill,membership", "nodes": 4, "time_limit": 5.0, "settings": {**GROWTH, **settings}}


DELIVERED = "confirmed messages were delivered"
LINES: Mapping[str, Line] = {
    "asynchronous": Line("queue", DELIVERED, grew("two-step"),
                         **_growing(propagation="asynchronous", transfer="two-step")),
    "processing": Line("processing", DELIVERED, processed, **_growing(source="topic", transfer="held-back")),
    "store-and-forward": Line("store-and-forward", DELIVERED, forwarded, nodes=4,
                              settings={"kill_kind": "master", "local_servers": "1"}),
    "own-server": Line("store-and-forward", DELIVERED, delivered_to_own_servers, nodes=4,
                       settings={"kill_kind": "master", "local_servers": "1", "consume_at": "own-server"}),
    "clustered": Line("clustered", DELIVERED, clustered, nodes=6),
    "clustered-topic": Line("clustered-topic", "owed to durable subscriptions came", clustered_topics, nodes=4,
                            settings={"kill_kind": "master", "stay": "8"}, time_limit=6.0),
    "topic": Line("topic", "owed to durable subscriptions came", served_by_two),
    "transaction": Line("transaction", "moved exactly once", served_by_two,
                        settings={"kill_kind": "master", "transactions": "xa", "crash_share": "0.2"}),
    "unspecified": Line("queue", "Invalid", both_sides_served, nemesis="partition", time_limit=8.0, verdict="invalid",
                        settings={"partition_kind": "master", "partitions": "unspecified", "both_sides": "true",
                                  "fault_duration": "3.5"}),
}  # fmt: skip


def row(*ids: str, part: bool = False) -> list[pytest.MarkDecorator]:
    return [pytest.mark.requirement(each, part=True) if part else pytest.mark.requirement(each) for each in ids]


ROWS: Mapping[str, list[pytest.MarkDecorator]] = {
    "asynchronous": row("J1", "J7", "J15", "J17", "J18"),
    "processing": row("J3", "J5", "J10", "J18") + row("J4", part=True),
    "store-and-forward": row("J2", "J11", "J12"),
    "own-server": row("J21"),
    "clustered": row("J19"),
    "clustered-topic": row("J22"),
    "topic": row("J5"),
    "transaction": row("J4", part=True),
    "unspecified": row("J20"),
    "descriptor": row("J1", "J6", "J8", "J13", "J14", "J15", "J16", "J17") + row("J10", part=True),
}
