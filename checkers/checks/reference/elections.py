"""The rules of HA IceStorm's elections, checked on the replicas' logs: no client's history shows these rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from checkers.api import RunCheck
from checkers.run import SECOND, Run
from nodes.systems.reference.log_events import EventLine, events
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.fault import (
    CUTS_LINKS,
    DELAYS_MESSAGES,
    ENDS_PROCESS,
    LEAVES_LINKS,
    LOSES_DATA,
    MAY_END_PROCESS,
    MOVES_CLOCK,
    STOPS_TIME,
)
from stormproof.history.ledger import FaultWindow
from stormproof.history.log_timestamps import read_moments
from stormproof.history.read_limits import read_small_text
from stormproof.text import amount
from stormproof.vocabulary import EVENTS, METADATA

NORMAL, REORGANIZATION = "normal", "reorganization"
_STANDS_STILL = frozenset({STOPS_TIME, ENDS_PROCESS, MAY_END_PROCESS, MOVES_CLOCK})
"""Effects of faults that strike a replica itself. During such a fault no time bound applies to the replica."""


@dataclass(frozen=True)
class StateChange:
    """A replica's change of state.

    ``process`` numbers the replica's starts. ``formed``: with this step, the replica is a member of a group.
    """

    node: str
    process: int
    time: float
    state: str
    coordinator: str
    group: str
    formed: bool


@dataclass(frozen=True)
class Formed:
    """A group as its coordinator formed it; ``epoch`` is its round and the coordinator's priority."""

    node: str
    group: str
    epoch: tuple[int, int]
    members: tuple[str, ...]
    replicates: bool


@dataclass
class Account:
    """The content of the replicas' logs: the steps of each replica in order, and each line that formed a group."""

    names: Sequence[str]
    steps: dict[str, list[StateChange]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[Formed]] = field(default_factory=lambda: defaultdict(list))

    def the(self, group: str) -> Formed | None:
        """Return the group, if its coordinator's log line exists."""
        return next(iter(self.groups.get(group, ())), None)


def check(run: Run) -> CheckOutcome:
    """Find breaches of the election's rules; a run whose logs show no replicating group is undecided.

    A log line that is missing proves nothing: the check assumes that it would have shown correct behaviour.
    """
    names = [f"n{number + 1}" for number in range(int(run.test.get("nodes", 0)))]
    account = read_account(run.folder / "logs" if run.folder is not None else None, names, _zero(run))
    replicating = [formed for lines in account.groups.values() for formed in lines if formed.replicates]
    if not replicating:
        return CheckOutcome(UNKNOWN, 0, "the replicas' logs show no group that replicates")
    effects = frozenset[str]().union(*(fault.effects for fault in run.faults))
    # A replica that lost its disk may have forgotten its promises.
    forgetful = {name for fault in run.faults if LOSES_DATA in fault.effects for name in fault.targets}
    found = [*_groups(account, forgetful), *_members(account), *_full_start(account)]
    if LOSES_DATA not in effects:
        found += _epochs_grow(account)
    times_known = run.in_process or MOVES_CLOCK not in effects
    if run.lateness is not None and times_known:
        found += _minorities(run, account, run.lateness)
    figures: dict[str, object] = {"groups": len(account.groups), "replicating": len(replicating)}
    if found:
        text = f"{amount(len(found), 'breach', 'breaches')} of the election's rules: {found[0].detail['reason']}"
        return CheckOutcome(INVALID, len(found), text, tuple(found[:MAX_EXAMPLES]), figures)
    return CheckOutcome(VALID, 0, f"{len(replicating):,} groups that replicated kept the election's rules", (), figures)


def read_account(logs: Path | None, names: Sequence[str], zero: float) -> Account:
    """Read the nodes' logs in a folder; times become seconds since ``zero`` (seconds since 1970)."""
    account = Account(names)
    for name in names:
        file = logs / f"{name}.log" if logs is not None else None
        if file is None or not file.exists():
            continue
        process = 0
        text = read_small_text(file)
        moments = read_moments(file, len(text.splitlines()))
        for line in events(name, text):
            if line.event == "replica state":
                process += line.fields.get("why") == "start"
                told = datetime.fromisoformat(line.time).timestamp() if moments is None else moments[line.row]
                account.steps[name].append(_step(line, process, told - zero))
            elif line.event in ("group replicates", "group waits"):
                formed = _formed(line, names)
                account.groups[formed.group].append(formed)
    return account


def _step(line: EventLine, process: int, moment: float) -> StateChange:
    f = line.fields
    formed = f.get("why", "").startswith("group of ")
    return StateChange(line.node, process, moment, f.get("state", ""), f.get("coordinator", ""), f.get("group", ""),
                       formed)  # fmt: skip


def _formed(line: EventLine, names: Sequence[str]) -> Formed:
    f = line.fields
    priority = names.index(line.node) if line.node in names else -1
    members = tuple(f.get("members", "").split(","))
    epoch = (int(f.get("epoch", 0)), priority)
    return Formed(line.node, f.get("group", ""), epoch, members, line.event == "group replicates")


def _zero(run: Run) -> float:
    told = run.info.get("clock_zero")
    return datetime.fromisoformat(str(told)).timestamp() if told else 0.0


def _breach(kind: str, reason: str, **detail: object) -> Anomaly:
    return Anomaly(kind, (), detail={"reason": reason, **detail})


def _groups(account: Account, forgetful: Collection[str]) -> Iterator[Anomaly]:
    """Check that only a majority replicates, that a group has one coordinator, and that an epoch has one group.

    An epoch may have two groups if its coordinator may be ``forgetful``.
    """
    of_epoch: dict[tuple[int, int], str] = {}
    for group, lines in account.groups.items():
        if len({formed.node for formed in lines}) > 1:
            yield _breach("two-coordinators", f"group {group} was formed by {lines[0].node} and {lines[-1].node}")
        formed = lines[0]
        if not formed.replicates:
            continue
        if 2 * len(formed.members) <= len(account.names):
            yield _breach("minority-replicates", f"group {group} replicates with {len(formed.members)} of "
                          f"{len(account.names)} replicas", members=list(formed.members))  # fmt: skip
        other = of_epoch.setdefault(formed.epoch, group)
        if other != group and formed.node not in forgetful:
            yield _breach("two-groups-in-one-epoch", f"groups {other} and {group} replicate in one epoch of "
                          f"{formed.node}")  # fmt: skip


def _members(account: Account) -> Iterator[Anomaly]:
    """Check each member of a group: its coordinator admitted it, it follows that coordinator, and it entered from the
    *reorganization* state of the same group.
    """
    for node, steps in account.steps.items():
        before: StateChange | None = None
        for step in steps:
            formed = account.the(step.group)
            right = formed is None or (step.coordinator == formed.node and node in formed.members)
            if step.formed and not right and formed is not None:
                yield _breach("not-a-member", f"{node} is in group {step.group} of {step.coordinator}, but "
                              f"{formed.node} formed it with {', '.join(formed.members)}")  # fmt: skip
            came = before is not None and (before.state, before.group) == (REORGANIZATION, step.group)
            if step.formed and not came:
                yield _breach("two-groups-at-once", f"{node} entered group {step.group} while it was forming, or in, "
                              f"{before.group if before is not None else 'none'}")  # fmt: skip
            before = step


def _full_start(account: Account) -> Iterator[Anomaly]:
    """Check that a group replicates only with all replicas, or with a member that has a link to such a full group.

    The link is transitive: since its process started, the member was in a full group, or in a group with a member that
    has such a link.
    """
    seen = {
        group for group, lines in account.groups.items() if set(lines[0].members) >= set(account.names)
    }  # fmt: skip
    earlier = {group: set(_earlier(account, lines[0])) for group, lines in account.groups.items()}
    while more := {group for group, others in earlier.items() if group not in seen and (others & seen or "" in others)}:
        seen |= more
    for group, lines in account.groups.items():
        if lines[0].replicates and group not in seen:
            yield _breach("not-everybody-at-start", f"group {group} replicates with {', '.join(lines[0].members)}, "
                          "though none of their processes had been in a group with all")  # fmt: skip


def _earlier(account: Account, formed: Formed) -> Iterator[str]:
    """Yield the groups in which members had been before, within the process in which they joined.

    An empty text means that the logs cannot show it.
    """
    for member in formed.members:
        steps = account.steps.get(member, [])
        place = next((n for n, step in enumerate(steps) if step.group == formed.group), None)
        if place is None:
            yield ""
            continue
        for step in steps[:place]:
            if step.formed and step.process == steps[place].process:
                yield step.group if step.group in account.groups else ""


def _epochs_grow(account: Account) -> Iterator[Anomaly]:
    """Check that no replica returns to an older epoch."""
    for node, steps in account.steps.items():
        newest = (-1, -1)
        for step in steps:
            formed = account.the(step.group)
            if not step.formed or formed is None or not formed.replicates:
                continue
            if formed.epoch <= newest:
                yield _breach("epoch-goes-back", f"{node} took part in group {step.group} of round "
                              f"{formed.epoch[0]} after one of round {newest[0]}")  # fmt: skip
            newest = max(newest, formed.epoch)


def _minorities(run: Run, account: Account, margin: float) -> Iterator[Anomaly]:
    """Check that replicas that are cut off from the majority leave *normal* in time.

    A replica is exempt if it was paused itself, or if another cut-off replica was paused from which it might have
    learned of the cut.
    """
    options: Mapping[str, float] = run.test.get("options", {})
    pause = max(float(options.get("master_timeout", 1.0)), float(options.get("election_timeout", 1.0)))
    once = pause + float(options.get("response_timeout", 0.5))
    for fault in run.faults:
        if CUTS_LINKS not in fault.effects or not fault.confirmed or 2 * len(fault.targets) > len(account.names):
            continue
        if LEAVES_LINKS in fault.effects:  # a link's two ends still hear the other replicas
            continue
        # A replica that is cut off alone finds out by its own unanswered requests. A slave that is cut off together
        # with its coordinator learns it from the coordinator, after that one has found out.
        bound = once * min(len(fault.targets), 2) + margin
        since = (fault.start if fault.in_force is None else fault.in_force) / SECOND
        # If the fault was not healed, its observation ends with the run: a broken invariant may have ended both.
        seen = int(run.history.time[-1]) if run.history.rows else 0
        end = (seen if fault.end is None else fault.end) / SECOND
        if since + bound >= end:
            continue
        if any(_stood_still(run.faults, node, since - bound, since + bound) for node in fault.targets):
            continue
        for node in fault.targets:
            at = [step for step in account.steps.get(node, ()) if step.time <= since + bound]
            if at and at[-1].state == NORMAL:
                yield _breach("minority-stays", f"{node} was cut off at {since:.2f} s and still normal {bound:g} s "
                              "later", fault=fault.id)  # fmt: skip


def _stood_still(faults: Sequence[FaultWindow], node: str, since: float, until: float) -> bool:
    return any(
        (DELAYS_MESSAGES in fault.effects or (fault.effects & _STANDS_STILL and node in fault.targets))
        and fault.start / SECOND <= until and (fault.end is None or fault.end / SECOND >= since)
        for fault in faults
    )  # fmt: skip


CHECK = RunCheck(
    name="elections",
    guarantee="a group replicates with a majority, after a stop of all with everybody; nobody is in two; a minority "
    "stops",
    anomaly="elections",
    subjects=(METADATA, EVENTS,),
    one="rule of the election was broken",
    more="rules of the election were broken",
    function=check,
)
