"""What a manager tells the others of its broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nodes.reference.replication.links import LinkError
from nodes.reference.replication.messages import MAX_NUMBER

READY, STOPPED = "ready", "stopped"
EMPTY, CLEAN = "empty", "clean"


@dataclass(frozen=True)
class Report:
    """``up``: the broker runs and answers; what follows is its own word (``Control``), empty while it does not answer.

    ``state``: connecting, catchup, ready or primary; ``eligible``: it would take over; ``generation``: that of its
    data; ``store``: empty, clean or dirty; ``uuid``: the orderly shutdown that a clean store is of. ``ballot``: that of
    the decision which its manager had accepted when it asked. ``promoted``: the term in which the process that runs was
    promoted, 0 if it was not. ``finished``: as in ``Record``.
    ``declined``: the last term in which the broker said no. ``forced``: a person has vouched for its data.
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
        """As it is sent."""
        return asdict(self)


_MAX_TEXT = 100
_TYPES = {each.name: type(each.default) for each in fields(Report)}


def decoded(value: Mapping[str, Any]) -> Report:
    """The report in a heartbeat; raises LinkError when it is none."""
    if {name: type(each) for name, each in value.items()} != _TYPES or not all(map(_can_be_told, value.values())):
        raise LinkError("a report is malformed")
    return Report(**value)


def of_status(status: Mapping[str, Any], ballot: int, promoted: int, finished: int) -> Report:
    """The report of a broker that has answered; raises ValueError when the answer makes no sense."""
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
    """Whether it is no more than others can be told in a heartbeat."""
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT and value.isprintable()
    return bool(0 <= value <= MAX_NUMBER)


def may_bootstrap(reports: Mapping[str, Report], members: Sequence[str], ballot: int) -> bool:
    """Whether the whole cluster starts for the first time, or after an orderly shutdown: then anybody may be primary.

    Every configured member must say so of its store, and must have been asked after it had accepted the coordinator's
    ballot: from then on no decision of an earlier ballot can make its store another one, but that which the coordinator
    has taken over (``Coordinator``).
    """
    found = [reports.get(name) for name in members]
    known = [report for report in found if report is not None and report.up and report.ballot >= ballot]
    if len(known) < len(members):
        return False
    stores = {(report.store, report.uuid) for report in known}
    return {store for store, _ in stores} == {EMPTY} or (len(stores) == 1 and known[0].store == CLEAN
                                                         and known[0].uuid != "")  # fmt: skip


def successors(reports: Mapping[str, Report], order: Sequence[str], last: str) -> list[str]:
    """Whose broker may be started from the store that the last primary's has left: another node's first."""
    able = [name for name in order if name in reports]
    return sorted(able, key=lambda name: (name == last, order.index(name)))


def candidates(reports: Mapping[str, Report], order: Sequence[str], excluded: Collection[str]) -> list[str]:
    """Who may be made primary, best first: whom a person vouches for, then the newest data, those that were ready a
    moment ago, then in order; nobody whom the last primary went on without, unless a person says so."""
    able = [name for name in order if (report := reports.get(name)) is not None and report.up
            and report.state != STOPPED and (report.forced or (report.eligible and name not in excluded))]  # fmt: skip
    return sorted(able, key=lambda name: (not reports[name].forced, -reports[name].generation,
                                          reports[name].state != READY, order.index(name)))  # fmt: skip
