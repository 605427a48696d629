"""A manager's report of its broker to the other managers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.messages import MAX_NUMBER

READY, STOPPED = "ready", "stopped"
EMPTY, CLEAN = "empty", "clean"


@dataclass(frozen=True)
class Report:
    """The report of a broker. ``up``: the broker runs and answers; the following fields come from the broker
    (``Control``), and are empty while it does not answer.

    ``state``: connecting, catchup, ready or primary. ``eligible``: it is able to take over. ``generation``: the
    generation of its data. ``store``: empty, clean or dirty. ``uuid``: the orderly shutdown that left a clean store.
    ``ballot``: the ballot of the decision that its manager had accepted when it asked. ``promoted``: the term in which
    the present process was promoted, 0 if it was not. ``finished``: as in ``Record``. ``declined``: the last term in
    which the broker refused. ``forced``: an administrator has approved its data.
    """

    up: bool = False
    state: str = ""
    eligible: bool = False
    generation: int = 0
    store: str = ""
    uuid: str = ""
    ballot: int = 0
    promoted: int = 0
    finished: int = 0
    declined: int = 0
    forced: bool = False

    def encoded(self) -> dict[str, Any]:
        """Encode the report for a heartbeat."""
        return asdict(self)


_MAX_TEXT = 100
_TYPES = {each.name: type(each.default) for each in fields(Report)}


def decoded(value: Mapping[str, Any]) -> Report:
    """Decode the report in a heartbeat; raises LinkError if it is malformed."""
    if {name: type(each) for name, each in value.items()} != _TYPES or not all(map(_can_be_told, value.values())):
        raise LinkError("a report is malformed")
    return Report(**value)


def of_status(status: Mapping[str, Any], ballot: int, promoted: int, finished: int) -> Report:
    """Build the report of a broker from its answer; raises ValueError when the answer is invalid."""
    store = status.get("store")
    if not isinstance(store, Mapping):
        raise ValueError("the broker's status has no store")
    found: dict[str, Any] = {name: status.get(name) for name in ("state", "eligible", "generation")}
    found |= {"store": store.get("state"), "uuid": store.get("uuid") or "", "forced": status.get("forced", False)}
    for name, value in found.items():
        if type(value) is not _TYPES[name] or not _can_be_told(value):
            raise ValueError(f"the broker's status has no {name}")
    return Report(up=True, ballot=ballot, promoted=promoted, finished=finished, **found)


def _can_be_told(value: Any) -> bool:
    """Tell whether the value is within the limits of a heartbeat."""
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT and value.isprintable()
    return bool(0 <= value <= MAX_NUMBER)


def may_bootstrap(reports: Mapping[str, Report], members: Sequence[str], ballot: int) -> bool:
    """Tell whether the whole cluster starts for the first time, or after an orderly shutdown: then any member may be
    primary.

    Every configured member must report so of its store, and must have been asked after it had accepted the
    coordinator's ballot. From then on no decision of an earlier ballot can change its store, except the decision that
    the coordinator has taken over (``Coordinator``).
    """
    found = [reports.get(name) for name in members]
    known = [report for report in found if report is not None and report.up and report.ballot >= ballot]
    if len(known) < len(members):
        return False
    stores = {(report.store, report.uuid) for report in known}
    return {store for store, _ in stores} == {EMPTY} or (len(stores) == 1 and known[0].store == CLEAN
                                                         and known[0].uuid != "")  # fmt: skip


def successors(reports: Mapping[str, Report], order: Sequence[str], last: str) -> list[str]:
    """Return the members whose broker may be started from the store of the last primary: those on other nodes first."""
    able = [name for name in order if name in reports]
    return sorted(able, key=lambda name: (name == last, order.index(name)))


def candidates(reports: Mapping[str, Report], order: Sequence[str], excluded: Collection[str]) -> list[str]:
    """Return the possible primaries, best first: those approved by an administrator, then the newest data, then those
    that were ready a moment ago, then in order. A member without which the last primary continued is left out, unless
    an administrator has approved it."""
    able = [name for name in order if (report := reports.get(name)) is not None and report.up
            and report.state != STOPPED and (report.forced or (report.eligible and name not in excluded))]  # fmt: skip
    return sorted(able, key=lambda name: (not reports[name].forced, -reports[name].generation,
                                          reports[name].state != READY, order.index(name)))  # fmt: skip
