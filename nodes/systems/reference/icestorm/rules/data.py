"""Watchers of the databases of HA IceStorm's replicas, of the answers from them, and of the events that wait.

The sources are named as in ``table``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from nodes.reference.designs.icestorm.decisions import EPOCH_STEP, Stamp, majority, round_of
from nodes.reference.designs.icestorm.election import NORMAL, REORGANIZATION
from nodes.reference.designs.icestorm.topics import Change, ReplicatedTopic, TopicSubscriber
from nodes.systems.reference.icestorm.probes import IceStormObserved, IceStormProbe
from stormproof.contracts.invariant import Watcher

_NOTHING = Stamp(0, 0)
_SUBSCRIBER = attrgetter(*(each.name for each in fields(TopicSubscriber)))
Content = Mapping[str, tuple[tuple[TopicSubscriber, ...], tuple[tuple[str, int], ...]]]
"""Topic -> its subscribers and links."""
_CONTENTS_REMEMBERED = 400
"""The number of database contents that are remembered."""


def content_of(topics: Mapping[str, ReplicatedTopic]) -> Content:
    """Return the content of a database."""
    return {name: (tuple(topic.subscribers.values()), tuple(topic.links.items())) for name, topic in topics.items()}


def changed(content: Content, change: Change, stamp: Stamp) -> Content | str:
    """Return the content after a change, according to the table of requests, or the reason why the change is
    impossible.
    """
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
        return {**content, name: ((*subscribers, TopicSubscriber(rest[0], rest[1], rest[2], rest[3], since)), links)}
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


class OpenedAgain:
    """The epochs that a coordinator may open a second time, because its disk has lost what it knew of them: nothing
    can be said about the databases of their stamps."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._idents: dict[str, int] = {}
        self._upto: dict[int, int] = {}

    def seen(self, node: str, program: IceStormProbe, epoch: int) -> bool:
        """Note an epoch that a node's database shows; return whether it may be opened again."""
        self._idents[node] = program.election.ident
        ident = epoch % EPOCH_STEP
        self._newest[ident] = max(self._newest.get(ident, 0), epoch)
        return epoch <= self._upto.get(ident, -1)

    def disk_lost(self, node: str) -> None:
        """Note that the node has forgotten the epochs that it opened."""
        if (ident := self._idents.get(node)) is not None:
            self._upto[ident] = self._newest.get(ident, 0)


class StampsGrow(Watcher):
    """Tracks the newest stamp and promise of each replica."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}
        self._promises: dict[str, int] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that stamps and promises only grow, even across restarts: both are on disk before they are sent."""
        stamp = (now.stamp.epoch, now.stamp.counter)
        newest, promise = self._stamps.get(node, stamp), self._promises.get(node, 0)
        if stamp < newest:
            return f"its database had the stamp {newest}, and now {stamp}"
        if now.promised < promise:
            return f"it had promised epoch {round_of(promise)}, and now {round_of(now.promised)}"
        self._stamps[node], self._promises[node] = stamp, now.promised
        return ""

    def disk_lost(self, node: str) -> None:
        """Forget the stamp and the promise that were on the node's disk."""
        self._stamps.pop(node, None)
        self._promises.pop(node, None)


class OneDatabaseAStamp(Watcher):
    """Tracks the database content at each stamp."""

    def __init__(self) -> None:
        self.digests: dict[Stamp, bytes] = {}
        self._again = OpenedAgain()

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the database equals those that others had at the same stamp."""
        if before is not None and before.stamp == now.stamp:
            return ""
        if self._again.seen(node, program, now.stamp.epoch):
            self.digests.pop(now.stamp, None)
            return ""
        topics = program.database.topics
        # Faster than the topics' own encoding; a run has thousands of them.
        held = json.dumps([[name, list(map(_SUBSCRIBER, topics[name].subscribers.values())), topics[name].links]
                           for name in sorted(topics)])  # fmt: skip
        digest = hashlib.blake2b(held.encode(), digest_size=16).digest()
        if self.digests.setdefault(now.stamp, digest) == digest:
            return ""
        return f"its database of stamp {now.stamp.epoch}.{now.stamp.counter} is another than elsewhere"

    def disk_lost(self, node: str) -> None:
        """Handle that the node may open its epochs again."""
        self._again.disk_lost(node)


class ConfirmedStays(Watcher):
    """Tracks the stamps that a majority had on disk, and the database contents at those stamps."""

    def __init__(self) -> None:
        self._databases = OneDatabaseAStamp()
        self._stamps: dict[str, Stamp] = {}
        self._settled = Stamp(0, 0)
        self._meeting = 1
        """The number of replicas of which every majority has one."""

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a new group begins with a database that contains everything that a majority had."""
        if before is not None and before.stamp == now.stamp:
            return ""
        seen = self._databases.digests
        fresh = now.stamp not in seen
        self._databases.look(node, program, now, before)
        # A group of an epoch that a majority has left behind, because its coordinator was suspended, is not a later
        # group.
        if fresh and not now.stamp.counter and now.stamp > self._settled:
            digest, known = seen.get(now.stamp), self._settled in seen
            if known and digest and not any(seen[each] == digest for each in seen if self._settled <= each < now.stamp):
                return (f"epoch {round_of(now.stamp.epoch)} begins with a database that lacks what a majority had at "
                        f"stamp {self._settled.epoch}.{self._settled.counter}")  # fmt: skip
        self._stamps[node] = now.stamp
        reached = sorted(self._stamps.values(), reverse=True)
        needed = majority(program.replicas)
        # Only stamps of one epoch share a history: of two epochs, the older may hold changes that no other replica has
        # had.
        if len(reached) >= needed and reached[needed - 1].epoch == reached[0].epoch:
            self._settled = max(self._settled, reached[needed - 1])
        self._meeting = program.replicas - needed + 1
        return ""

    def disk_lost(self, node: str) -> None:
        """Forget what so few replicas still have that a majority may have none of them."""
        self._databases.disk_lost(node)
        self._stamps.pop(node, None)
        left = sorted(self._stamps.values(), reverse=True)
        self._settled = min(self._settled, left[self._meeting - 1]) if len(left) >= self._meeting else _NOTHING


class AgreedIsThere(Watcher):
    """Tracks the newest change in each replica's database in each epoch."""

    def __init__(self) -> None:
        self._reached: dict[str, dict[int, int]] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a change that a coordinator considers agreed is on the disks of a majority."""
        if before is None or before.stamp != now.stamp:
            self._reached.setdefault(node, {})[now.stamp.epoch] = now.stamp.counter
        stamp = now.agreed
        if stamp == (before.agreed if before is not None else _NOTHING):
            return ""
        having = [name for name, reached in self._reached.items() if reached.get(stamp.epoch, -1) >= stamp.counter]
        if len(having) >= majority(program.replicas):
            return ""
        return (f"change {stamp.counter} of epoch {round_of(stamp.epoch)} is agreed upon, and on the disks of "
                f"{', '.join(having)} only")

    def disk_lost(self, node: str) -> None:
        """Forget the changes that were on the node's disk."""
        self._reached.pop(node, None)


class ChangesAsAsked(Watcher):
    """Tracks the database contents at the newest stamps."""

    def __init__(self) -> None:
        self._contents: dict[Stamp, Content] = {}
        self._again = OpenedAgain()

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the first database with a change shows exactly that change, and otherwise equals the one before.
        """
        if before is not None and before.stamp == now.stamp:
            return ""
        again = self._again.seen(node, program, now.stamp.epoch)
        if again or now.stamp in self._contents:
            return ""
        content = self._contents[now.stamp] = content_of(program.database.topics)
        if len(self._contents) > _CONTENTS_REMEMBERED:
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

    def disk_lost(self, node: str) -> None:
        """Handle that the node may open its epochs again."""
        self._again.disk_lost(node)


def _unordered(content: Content) -> dict[str, tuple[frozenset[Any], frozenset[Any]]]:
    return {name: (frozenset(subscribers), frozenset(links)) for name, (subscribers, links) in content.items()}


class ChangesInTheirEpoch(Watcher):
    """Tracks all stamps so far, and the running replicas."""

    def __init__(self) -> None:
        self._stamps: set[Stamp] = set()
        self._running: dict[int, str] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a change belongs to the epoch that its replica has promised, and originates at that epoch's
        coordinator.
        """
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
        """Forget the replica: it may have made a change at the very moment at which it ended."""
        self._running = {ident: name for ident, name in self._running.items() if name != node}


class MostRecentWins(Watcher):
    """Tracks the replicas, the database contents at the newest stamps, and the stamp with which each epoch began."""

    def __init__(self) -> None:
        self._seen: dict[str, IceStormObserved] = {}
        self._contents: dict[Stamp, Content] = {}
        self._best: dict[int, Stamp] = {}
        self._again = OpenedAgain()

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a group begins with the most recent of its members' databases, which the other members receive."""
        self._seen[node] = now
        if before is not None and before.stamp == now.stamp:
            return ""
        if self._again.seen(node, program, now.stamp.epoch):
            self._contents.pop(now.stamp, None)
            self._best.pop(now.stamp.epoch, None)
            return ""
        content = content_of(program.database.topics)
        wrong = self._compare(node, program, now, before, content) if before is not None else ""
        self._contents[now.stamp] = content
        if len(self._contents) > _CONTENTS_REMEMBERED:
            del self._contents[next(iter(self._contents))]
        return wrong

    def ended(self, node: str) -> None:
        """Forget the replica."""
        self._seen.pop(node, None)

    def disk_lost(self, node: str) -> None:
        """Handle that the node may open its epochs again."""
        self._again.disk_lost(node)

    def _compare(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved,
                 content: Content) -> str:
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
    def _given(program: IceStormProbe, before: IceStormObserved, best: Stamp | None) -> str:
        taken = program.database.taken_over
        if best is None or taken == (before.stamp != best):
            return ""
        return (f"it is given the database of stamp {_told(best)}, which it has" if taken
                else f"it keeps its database of stamp {_told(before.stamp)}, and that of {_told(best)} is more recent")


class AnswersWhileItLeads(Watcher):
    """Tracks each replica's promise, the epochs that a majority has left, and the requests begun by that time."""

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._programs: dict[str, IceStormProbe] = {}
        self._left = 0
        self._meeting = 1
        """The number of replicas of which every majority has one."""
        self._begun: dict[str, int] = {}

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that a request begun after a majority left its epoch is not answered: another coordinator may have made
        changes.
        """
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
        """Keep the ended replica's promise, which is on its disk."""
        self._programs.pop(node, None)
        self._begun.pop(node, None)

    def disk_lost(self, node: str) -> None:
        """Forget the node's promise, and the epoch that is left if so few keep to that that a majority may not."""
        self._promised.pop(node, None)
        promised = sorted(self._promised.values(), reverse=True)
        self._left = min(self._left, promised[self._meeting - 1]) if len(promised) >= self._meeting else 0

    def _settle(self, program: IceStormProbe) -> None:
        promised: Sequence[int] = sorted(self._promised.values(), reverse=True)
        needed = majority(program.replicas)
        self._meeting = program.replicas - needed + 1
        if len(promised) >= needed and promised[needed - 1] > self._left:
            self._left = promised[needed - 1]
            self._begun = {name: each.begun for name, each in self._programs.items()}


class AnswersInItsGroup(Watcher):
    """Stateless check of a replica in the step in which it answers."""

    fields = ("answered",)

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check that the replica still leads the group which a majority has confirmed; it has not learned that they
        left.
        """
        number, epoch = now.answered
        if not number or (before is not None and before.answered == now.answered):
            return ""
        if (now.state, now.coordinator, now.epoch) == (NORMAL, node, epoch):
            return ""
        return f"it has answered request {number} of epoch {epoch}, and is {now.state} in epoch {now.epoch}"


class DeliversToSubscribers(Watcher):
    """Stateless check of a replica's waiting events."""

    def look(self, node: str, program: IceStormProbe, now: IceStormObserved, before: IceStormObserved | None) -> str:
        """Check, whenever the database has changed, that events wait for present subscribers only."""
        return "" if before is not None and before.stamp == now.stamp else program.strangers()
