"""What holds of the databases of HA IceStorm's replicas, and of what is answered from them.

The sources are named as in ``invariants``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.designs.icestorm.decisions import EPOCH_STEP, Stamp, majority
from nodes.reference.designs.icestorm.design import IceStorm, Observed
from nodes.reference.designs.icestorm.election import NORMAL, REORGANIZATION
from nodes.reference.designs.icestorm.topics import Change, Subscriber, Topic
from stormproof.contracts.invariant import Watcher

Content = Mapping[str, tuple[tuple[Subscriber, ...], tuple[tuple[str, int], ...]]]
"""Topic -> its subscribers and links."""
_KNOWN = 400
"""Contents that are remembered."""


def content_of(topics: Mapping[str, Topic]) -> Content:
    """What a database holds."""
    return {name: (tuple(topic.subscribers.values()), tuple(topic.links.items())) for name, topic in topics.items()}


def changed(content: Content, change: Change, stamp: Stamp) -> Content | str:
    """What a database holds after a change, as the table of requests has it; or why that can't be made."""
    kind, name, rest = change[0], change[1], change[2:]
    if kind == "create":
        return f"{name} exists" if name in content else {**content, name: ((), ())}
    if name not in content:
        return content if kind == "remove" else f"there is no topic {name}"
    if kind == "destroy":
        return {each: (subscribers, tuple(link for link in links if link[0] != name))
                for each, (subscribers, links) in content.items() if each != name}
    subscribers, links = content[name]
    known = {each.ident: each for each in subscribers}
    if kind == "subscribe":
        if rest[0] in known:
            return f"{rest[0]} is subscribed to {name}"
        since = f"{stamp.epoch}.{stamp.counter}"
        return {**content, name: ((*subscribers, Subscriber(rest[0], rest[1], rest[2], rest[3], since)), links)}
    if kind == "unsubscribe" and rest[0] not in known:
        return f"{rest[0]} is not subscribed to {name}"
    if kind in ("unsubscribe", "remove"):
        left = tuple(each for each in subscribers
                     if each.ident != rest[0] or (kind == "remove" and each.since != rest[1]))
        return {**content, name: (left, links)}
    linked = dict(links)
    if kind == "link":
        if rest[0] in linked or rest[0] == name or rest[0] not in content:
            return f"{name} can't be linked to {rest[0]}"
        return {**content, name: (subscribers, (*links, (rest[0], rest[1])))}
    if rest[0] not in linked:
        return f"{name} is not linked to {rest[0]}"
    return {**content, name: (subscribers, tuple(link for link in links if link[0] != rest[0]))}


def _told(stamp: Stamp) -> str:
    return f"{stamp.epoch}.{stamp.counter}"


class ChangesAsAsked(Watcher):
    """What databases held at the newest stamps."""

    def __init__(self) -> None:
        self._contents: dict[Stamp, Content] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """The first database that has a change holds what it asks for, and all else that was there."""
        if (before is not None and before.stamp == now.stamp) or now.stamp in self._contents:
            return ""
        content = self._contents[now.stamp] = content_of(program.database.topics)
        if len(self._contents) > _KNOWN:
            del self._contents[next(iter(self._contents))]
        if before is None or (now.stamp.epoch, now.stamp.counter) != (before.stamp.epoch, before.stamp.counter + 1):
            return ""
        base, change = self._contents.get(before.stamp), program.database.last_change
        if base is None or change is None:
            return ""
        expected = changed(base, change, now.stamp)
        if isinstance(expected, str):
            return f"it has made a change that can't be made, {list(change)}: {expected}"
        if _unordered(expected) == _unordered(content):
            return ""
        wrong = next(name for name in sorted({*expected, *content}) if expected.get(name) != content.get(name))
        return f"after {list(change)} topic {wrong} is {content.get(wrong)}, and was to be {expected.get(wrong)}"


def _unordered(content: Content) -> dict[str, tuple[frozenset[Any], frozenset[Any]]]:
    return {name: (frozenset(subscribers), frozenset(links)) for name, (subscribers, links) in content.items()}


class ChangesInTheirEpoch(Watcher):
    """The stamps that there have been, and who runs."""

    def __init__(self) -> None:
        self._stamps: set[Stamp] = set()
        self._running: dict[int, str] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """A change is of the epoch that its replica has promised, and begins at the coordinator of that."""
        self._running[program.election.ident] = node
        fresh = now.stamp not in self._stamps
        self._stamps.add(now.stamp)
        if before is None or before.stamp == now.stamp:
            return ""
        if now.stamp.epoch != now.promised:
            return f"its database has changed to stamp {_told(now.stamp)}, and it has promised epoch {now.promised}"
        wanted = (NORMAL, REORGANIZATION) if now.stamp.counter else (REORGANIZATION,)
        if before.state not in wanted and now.state not in wanted:
            return f"its database has changed to stamp {_told(now.stamp)} while it was {before.state}"
        first = now.stamp.epoch % EPOCH_STEP
        if fresh and first != program.election.ident and first in self._running:
            return f"its database has changed to stamp {_told(now.stamp)}, which its coordinator has not made"
        return ""

    def ended(self, node: str) -> None:
        """It may have made a change in the moment in which it ended."""
        self._running = {ident: name for ident, name in self._running.items() if name != node}


class MostRecentWins(Watcher):
    """How each replica stands, what its database held at the newest stamps, and with which each epoch began."""

    def __init__(self) -> None:
        self._seen: dict[str, Observed] = {}
        self._contents: dict[Stamp, Content] = {}
        self._best: dict[int, Stamp] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """A group begins with the most recent of its members' databases, which those are given that have another."""
        self._seen[node] = now
        if before is not None and before.stamp == now.stamp:
            return ""
        content = content_of(program.database.topics)
        wrong = self._compare(node, program, now, before, content) if before is not None else ""
        self._contents[now.stamp] = content
        if len(self._contents) > _KNOWN:
            del self._contents[next(iter(self._contents))]
        return wrong

    def ended(self, node: str) -> None:
        """Nothing is known of it."""
        self._seen.pop(node, None)

    def _compare(self, node: str, program: IceStorm, now: Observed, before: Observed, content: Content) -> str:
        if now.stamp.counter:
            return ""
        if now.coordinator != node or now.state != REORGANIZATION:
            return self._given(program, before, self._best.get(now.stamp.epoch))
        members = [self._seen.get(name) for name in program.members]
        if any(seen is None or (seen.state, seen.group, seen.promised) != (REORGANIZATION, now.group, now.promised)
               for seen in members):
            return ""
        best = max([before.stamp, *(seen.stamp for seen in members if seen is not None)], key=Stamp.age)
        self._best[now.stamp.epoch] = best
        expected = self._contents.get(best)
        if expected is None or _unordered(expected) == _unordered(content):
            return self._given(program, before, best)
        return f"its group begins with another database than that of stamp {_told(best)}, the most recent in it"

    @staticmethod
    def _given(program: IceStorm, before: Observed, best: Stamp | None) -> str:
        taken = program.database.taken_over
        if best is None or taken == (before.stamp != best):
            return ""
        return (f"it is given the database of stamp {_told(best)}, which it has" if taken
                else f"it keeps its database of stamp {_told(before.stamp)}, and that of {_told(best)} is more recent")


class AnswersWhileItLeads(Watcher):
    """What each replica has promised; the epochs that a majority has left, and how many requests each had begun then.
    """

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._programs: dict[str, IceStorm] = {}
        self._left = 0
        self._begun: dict[str, int] = {}

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """No request that was begun after that is answered in such an epoch: somebody else may have changed things."""
        self._programs[node] = program
        if before is None or before.promised != now.promised:
            self._promised[node] = now.promised
            self._settle(program)
        if before is None or before.answered == now.answered:
            return ""
        number, epoch = now.answered
        if epoch >= self._left or number <= self._begun.get(node, 0):
            return ""
        return f"it has answered request {number} in epoch {epoch}, and a majority had promised {self._left} before"

    def ended(self, node: str) -> None:
        """What it has promised is on its disk."""
        self._programs.pop(node, None)
        self._begun.pop(node, None)

    def _settle(self, program: IceStorm) -> None:
        promised: Sequence[int] = sorted(self._promised.values(), reverse=True)
        needed = majority(program.replicas)
        if len(promised) >= needed and promised[needed - 1] > self._left:
            self._left = promised[needed - 1]
            self._begun = {name: each.begun for name, each in self._programs.items()}


class AnswersInItsGroup(Watcher):
    """Nothing of its own: a replica is looked at in the step in which it answers."""

    fields = ("answered",)

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """A majority has confirmed its group, and it still has that: it has not found out in between that they left."""
        number, epoch = now.answered
        if not number or (before is not None and before.answered == now.answered):
            return ""
        if (now.state, now.coordinator, now.epoch) == (NORMAL, node, epoch):
            return ""
        return f"it has answered request {number} of epoch {epoch}, and is {now.state} in epoch {now.epoch}"


class DeliversToSubscribers(Watcher):
    """Nothing of its own: a replica is looked at as it is."""

    def look(self, node: str, program: IceStorm, now: Observed, before: Observed | None) -> str:
        """When its database has changed, nothing waits for those that are no subscribers any more."""
        return "" if before is not None and before.stamp == now.stamp else program.strangers()


class TellsItsState(Watcher):
    """Nothing of its own: a replica is looked at as it is."""

    period = 2.0

    def inspect(self, node: str, program: IceStorm) -> str:
        """What ``admin replica`` shows is how it stands."""
        now, told, idents = program.observed(), program.status(), program.election.idents
        normal = now.state == NORMAL
        leads = now.coordinator == node
        expected: dict[str, Any] = {
            "state": now.state, "id": idents[node], "coord": idents[now.coordinator], "group": now.group,
            "max": now.max_seen, "stamp": list(now.stamp), "epoch": now.epoch // EPOCH_STEP,
            "role": ("master" if leads else "slave") if normal else now.state, "serving": normal and leads,
            "master": now.coordinator if normal else None, "up": sorted(idents[name] for name in program.members),
        }
        wrong = [name for name, value in expected.items() if told.get(name) != value]
        if wrong:
            return f"it shows as {wrong[0]} {told.get(wrong[0])}, which is {expected[wrong[0]]}"
        if told["up"] and not leads:
            return f"it shows {told['up']} as its group, which it does not coordinate"
        view = set(told["view"])
        ours = {node, now.coordinator, *program.members}
        if bool(view) != normal or (normal and (not view >= ours or (leads and view != ours))):
            return f"it shows {sorted(view)} as its view, and is {now.state} in the group of {now.coordinator}"
        known = {ident for topic in program.database.topics.values() for ident in topic.subscribers}
        missing = sorted(known - set(told["waiting"]))
        return f"it does not show what waits for {missing[0]}" if missing else ""
