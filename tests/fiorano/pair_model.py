"""Two servers, the lock and the channel as a small model, to be explored exhaustively.

The table of transitions, who seeks the lock, which repository is newer, and the gateway's decisions are the real ones.
The rest is written down here once more, briefly: messages in order on a channel that each end sees break by itself,
requests to the gateway whose answers may be lost, leases that end, processes that die and come back. Data is one bit:
whether a repository holds all that was ever confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY, Grants, LockRecord, Take
from nodes.reference.designs.fiorano.repository import RepositoryStamp, is_newer
from nodes.reference.designs.fiorano.states import (
    ACTIVE,
    ACTIVE_TRANSITION,
    DEAD,
    PASSIVE,
    PASSIVE_TRANSITION,
    SERVING,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.transitions import (
    MET,
    NEWER,
    OLDER,
    REPLICATED,
    START_ALONE,
    SYNCED,
    WHOLE,
    View,
    next_step,
    wants_lock,
)

NAMES = ("n1", "n2")


class Violation(AssertionError):
    """A guarantee is broken; the text says which."""


class Hello(NamedTuple):
    state: str
    before: str
    whole: bool
    epoch: int
    counter: int
    asked: int
    kind: str = "hello"


class Begin(NamedTuple):
    epoch: int
    kind: str = "begin"


class Marker(NamedTuple):
    epoch: int
    counter: int
    all: bool
    kind: str = "marker"


class Change(NamedTuple):
    epoch: int
    counter: int
    kind: str = "change"


class Stored(NamedTuple):
    counter: int
    whole: bool
    kind: str = "stored"


# ``kind`` tells them apart: tuples of different classes with the same values are equal.
Message = Hello | Begin | Marker | Change | Stored
Wire = tuple[Message, ...]


class Side(NamedTuple):
    """One server. ``all``: its repository holds everything that was ever confirmed."""

    alive: bool = True
    state: str = WAITING
    before: str = DEAD
    linked: bool = False
    peer: Hello | None = None
    whole: bool = True
    epoch: int = 0
    counter: int = 0
    asked: int = 0
    told: int = 0
    met: bool = False
    lock: int = 0
    valid: bool = False
    request: Take | None = None
    answer: int = 0
    following: bool = False
    shared: int = 0
    acks: bool = False
    acked: int = 0
    synced: bool = False
    all: bool = True


class Pair(NamedTuple):
    """The world. ``wires[i]`` are messages from server i; ``up``: the channel carries; ``left``: faults to come."""

    sides: tuple[Side, Side] = (Side(), Side())
    wires: tuple[Wire, Wire] = ((), ())
    up: bool = False
    record: LockRecord = LockRecord()
    taken: bool = False
    left: tuple[int, ...] = (1, 1, 1, 1, 1)


BREAKS, DEATHS, LAPSES, CHANGES, LOSSES = range(5)


@dataclass(frozen=True)
class Rules:
    """``lock`` and ``fencing`` as the options; ``start_alone`` as well."""

    lock: bool = True
    fencing: bool = True
    start_alone: bool = False


class Model:
    """Steps of the pair; each raises Violation where it would break a guarantee."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    # What the real code decides.

    def stamp(self, side: Side | Hello) -> RepositoryStamp:
        return RepositoryStamp(side.whole, side.epoch, side.counter, 0.0, side.asked)

    def view(self, pair: Pair, i: int) -> View:
        side = pair.sides[i]
        facts = {WHOLE} if side.whole else set()
        if side.met and self.rules.fencing and self.rules.lock:
            facts.add(MET)
        if self.rules.start_alone:
            facts.add(START_ALONE)
        if side.synced:
            facts.add(SYNCED)
        lock = self.holds(side)
        if not side.linked or side.peer is None:
            return View(side.state, False, lock=lock, facts=frozenset(facts))
        if is_newer(self.stamp(side), self.stamp(side.peer), i == 0):
            facts.add(NEWER)
        if is_newer(self.stamp(side.peer), self.stamp(side), i == 1):
            facts.add(OLDER)
        return View(side.state, True, side.peer.state, side.peer.before, lock, frozenset(facts))

    def holds(self, side: Side) -> bool:
        return not self.rules.lock or bool(side.lock and side.valid)

    def may_alone(self, side: Side) -> bool:
        """Whether a server may confirm what only it has."""
        if not side.alive or side.state not in SERVING or side.acks:
            return False
        if not (self.rules.lock and self.rules.fencing):
            return True
        return self.holds(side) and side.lock > side.shared and side.epoch == side.lock

    def take_of(self, pair: Pair, i: int) -> Take | None:
        """What this server asks the gateway for now."""
        side = pair.sides[i]
        if not (self.rules.lock and side.alive and wants_lock(REPLICATED, self.view(pair, i))):
            return None
        if self.holds(side) and (side.lock > side.shared or side.acks):
            return None
        other = side.peer if side.linked and side.state == WAITING else None
        low = max(side.epoch, other.epoch if other is not None else 0)
        high = other.asked if other is not None else ALONE
        new = max(low, side.asked, high, side.lock) + 1
        return Take(low if self.rules.fencing else ANY, side.asked, high, new)

    # Steps.

    def steps(self, pair: Pair) -> Iterator[tuple[str, Pair]]:
        """Everything that may happen next."""
        yield from self.good_steps(pair)
        for i in (0, 1):
            side = pair.sides[i]
            if pair.left[LAPSES] and self.rules.lock and pair.taken and pair.record.holder == NAMES[i]:
                yield f"{NAMES[i]}'s lease ends", self.lapse(spend(pair, LAPSES), i)
            if pair.left[DEATHS] and side.alive:
                dead = Side(alive=False, whole=side.whole, epoch=side.epoch, counter=side.counter, asked=side.asked,
                            all=side.all)
                yield f"{NAMES[i]} dies", put(spend(pair, DEATHS), i, dead)._replace(up=False)
            if pair.left[LOSSES] and side.answer:
                yield f"{NAMES[i]} loses an answer", put(spend(pair, LOSSES), i, side._replace(answer=0))
            if pair.left[LOSSES] and side.request is None and (asked := self.asks(pair, i)) is not None:
                yield f"{NAMES[i]}'s request is late", spend(asked, LOSSES)
        if pair.left[BREAKS] and pair.up:
            yield "the channel breaks", spend(pair, BREAKS)._replace(up=False)

    def good_steps(self, pair: Pair) -> Iterator[tuple[str, Pair]]:
        """What happens without any further fault."""
        for i in (0, 1):
            side, name = pair.sides[i], NAMES[i]
            if not side.alive:
                yield f"{name} starts", put(pair, i, side._replace(alive=True, state=WAITING, before=DEAD,
                                                                 told=side.asked))
                # A dead holder's lease ends by itself.
                if pair.taken and pair.record.holder == name:
                    yield f"{name}'s lease is over", self.lapse(pair, i)
                continue
            if pair.taken and pair.record.holder == name and not side.lock and not side.answer:
                yield f"{name}'s unknown lease is over", self.lapse(pair, i)
            if pair.wires[1 - i] and side.linked:
                message, *rest = pair.wires[1 - i]
                taken = with_wire(pair, 1 - i, tuple(rest))
                yield f"{name} takes {message}", self.receive(taken, i, message)
            if side.linked and not pair.up:
                yield f"{name} sees the channel broken", self.unlink(pair, i)
            yield from self.lock_steps(pair, i)
            if side.linked and pair.up and side.told < side.asked and not self.pending(side):
                yield f"{name}'s heartbeat", self.greet(pair, i)
            if pair.left[CHANGES] and side.state in SERVING:
                yield f"{name} changes", self.change(spend(pair, CHANGES), i)
            if self.may_alone(side) and pair.sides[1 - i].all:
                yield f"{name} confirms alone", self.confirm_alone(pair, i)
            if side.state == ACTIVE_TRANSITION and not side.acks and side.following:
                yield f"{name} sends the marker", self.mark(pair, i)
        if not pair.up and all(side.alive and not side.linked for side in pair.sides):
            linked = pair._replace(up=True, wires=((), ()))
            for i in (0, 1):
                linked = put(linked, i, linked.sides[i]._replace(linked=True, peer=None))
            for i in (0, 1):
                linked = self.greet(linked, i)
            yield "the channel is up", linked

    def lock_steps(self, pair: Pair, i: int) -> Iterator[tuple[str, Pair]]:
        if not self.rules.lock:
            return
        side, name = pair.sides[i], NAMES[i]
        if side.request is not None:
            yield f"the gateway answers {name}", self.serve(pair, i, side.request)
        elif side.answer:
            granted = side._replace(answer=0, lock=side.answer, valid=True)
            yield f"{name} has the lock", self.locked(put(pair, i, granted), i)
        elif side.lock and not wants_lock(REPLICATED, self.view(pair, i)):
            released = put(pair, i, side._replace(lock=0, valid=False))
            mine = pair.record == (side.lock, name)
            yield f"{name} releases the lock", released._replace(taken=pair.taken and not mine)
        elif side.lock and not side.valid and pair.record == (side.lock, name):
            renewed = put(pair, i, side._replace(valid=True))._replace(taken=True)
            yield f"{name} has the lock again", self.locked(renewed, i)
        elif (asked := self.asks(pair, i)) is not None:
            request = asked.sides[i].request
            assert request is not None
            if not (pair.taken and pair.record.holder != name) and self.grants(pair).fits(name, request):
                yield f"{name} is granted the lock", self.serve(asked, i, request)

    def asks(self, pair: Pair, i: int) -> Pair | None:
        side, take = pair.sides[i], self.take_of(pair, i)
        if take is None or side.answer:
            return None
        if side.told < side.asked == take.new - 1:
            take = take._replace(new=side.asked)  # nobody was told of that number: it can be proposed again
        return put(pair, i, side._replace(request=take, asked=take.new))

    def grants(self, pair: Pair) -> Grants:
        return Grants(pair.record, 1.0, 0.0)

    def serve(self, pair: Pair, i: int, take: Take) -> Pair:
        side = pair.sides[i]._replace(request=None)
        if (pair.taken and pair.record.holder != NAMES[i]) or not self.grants(pair).fits(NAMES[i], take):
            return put(pair, i, side)
        granted = put(pair, i, side._replace(answer=take.new))
        return granted._replace(record=LockRecord(take.new, NAMES[i]), taken=True)

    def lapse(self, pair: Pair, i: int) -> Pair:
        """The lease of the holder is over, first by its own clock, then by the gateway's."""
        side = pair.sides[i]._replace(valid=False, answer=0)
        lapsed = put(pair, i, side)._replace(taken=False)
        # Without fencing a server knows when it looks, which is a step of its own.
        return self.settle(lapsed, i) if self.rules.fencing and side.alive else lapsed

    def locked(self, pair: Pair, i: int) -> Pair:
        settled = self.settle(pair, i)
        side = settled.sides[i]
        if side.state in SERVING and self.holds(side) and side.lock > side.epoch:
            side = side._replace(epoch=side.lock)
            settled = put(settled, i, side)
            if side.acks:
                settled = put(settled, i, side._replace(shared=side.lock))
                settled = send(settled, i, Change(side.lock, side.counter))
        return settled

    @staticmethod
    def pending(side: Side) -> bool:
        """Whether a server may yet be granted, and use, an epoch that it has asked for: then it tells nobody of it."""
        return side.request is not None or bool(side.answer) or side.lock > side.epoch

    def greet(self, pair: Pair, i: int) -> Pair:
        side = pair.sides[i]
        if not side.linked:
            return pair
        told = side.told if self.pending(side) else side.asked
        pair = put(pair, i, side._replace(told=told))
        return send(pair, i, Hello(side.state, side.before, side.whole, side.epoch, side.counter, told))

    def settle(self, pair: Pair, i: int) -> Pair:
        """Change states by the table until none changes any more."""
        while (line := next_step(REPLICATED, self.view(pair, i))) is not None:
            side = pair.sides[i]
            leaves = side.state in SERVING and line.to not in SERVING
            side = side._replace(state=line.to, before=side.state, met=side.met or line.to != WAITING)
            if line.to in SERVING and side.before not in SERVING:
                epoch = side.lock if self.rules.lock else max(side.epoch, side.asked) + 1
                side = side._replace(epoch=epoch, asked=max(epoch, side.asked), acks=False)
            if leaves:
                side = side._replace(acks=False, following=False)
            if line.to == STANDALONE:
                side = side._replace(acks=False, following=False, synced=False)
            if line.to == WAITING:
                side = side._replace(following=False, synced=False)
            if line.to == ACTIVE and not side.all:
                raise Violation(f"{NAMES[i]} becomes ACTIVE without what was confirmed")
            pair = put(pair, i, side)
            if line.to == ACTIVE_TRANSITION:
                pair = put(pair, i, side._replace(following=True, synced=False))
                pair = self.greet(pair, i)
                pair = send(pair, i, Begin(side.epoch))
            else:
                pair = self.greet(pair, i)
        return pair

    def unlink(self, pair: Pair, i: int) -> Pair:
        side = pair.sides[i]._replace(linked=False, peer=None, following=False, synced=False)
        return self.settle(with_wire(put(pair, i, side), 1 - i, ()), i)

    def receive(self, pair: Pair, i: int, message: Message) -> Pair:
        side = pair.sides[i]
        match message:
            case Hello():
                return self.settle(put(pair, i, side._replace(peer=message)), i)
            case Begin() if side.state == PASSIVE_TRANSITION:
                side = side._replace(whole=False, epoch=message.epoch, counter=0, following=True, all=False)
                return put(pair, i, side)
            case Marker() if side.state == PASSIVE_TRANSITION and side.following:
                side = side._replace(whole=True, epoch=message.epoch, counter=message.counter, all=message.all,
                                     synced=True)
                return self.settle(send(put(pair, i, side), i, Stored(message.counter, True)), i)
            case Change() if side.state == PASSIVE and side.following:
                side = side._replace(epoch=message.epoch, counter=message.counter)
                return send(put(pair, i, side), i, Stored(message.counter, True))
            case Stored() if side.acks:
                side = side._replace(acked=message.counter, synced=True)
                return self.settle(put(pair, i, side), i)
        return pair

    def change(self, pair: Pair, i: int) -> Pair:
        side = pair.sides[i]._replace(counter=pair.sides[i].counter + 1)
        pair = put(pair, i, side)
        return send(pair, i, Change(side.epoch, side.counter)) if side.acks else pair

    def mark(self, pair: Pair, i: int) -> Pair:
        side = pair.sides[i]._replace(acks=True, shared=pair.sides[i].epoch)
        return send(put(pair, i, side), i, Marker(side.epoch, side.counter, side.all))

    def confirm_alone(self, pair: Pair, i: int) -> Pair:
        """A change that this server alone has: the other's repository lacks it, and so does what is on its way."""
        side = pair.sides[i]
        if not side.all:
            raise Violation(f"{NAMES[i]} serves without what was confirmed")
        pair = put(pair, 1 - i, pair.sides[1 - i]._replace(all=False))
        wire = tuple(message._replace(all=False) if isinstance(message, Marker) else message
                     for message in pair.wires[1 - i])
        return with_wire(pair, 1 - i, wire)

    def check(self, pair: Pair) -> None:
        """Raises Violation."""
        alone = [self.may_alone(side) for side in pair.sides]
        if all(alone):
            raise Violation("two serve at once")
        for i in (0, 1):
            if alone[i] and not pair.sides[i].all:
                raise Violation(f"{NAMES[i]} may serve without what was confirmed")


def put(pair: Pair, i: int, side: Side) -> Pair:
    return pair._replace(sides=(side, pair.sides[1]) if i == 0 else (pair.sides[0], side))


def with_wire(pair: Pair, i: int, wire: Wire) -> Pair:
    return pair._replace(wires=(wire, pair.wires[1]) if i == 0 else (pair.wires[0], wire))


def send(pair: Pair, i: int, message: Message) -> Pair:
    if not (pair.up and pair.sides[i].linked):
        return pair
    return with_wire(pair, i, (*pair.wires[i], message))


def spend(pair: Pair, fault: int) -> Pair:
    return pair._replace(left=tuple(count - (place == fault) for place, count in enumerate(pair.left)))


def normal(pair: Pair) -> Pair:
    """The same pair with the smallest numbers: only the order of epochs, and of counters, means anything."""
    epochs = {0, pair.record.epoch}
    counters = {0}
    for side in pair.sides:
        epochs |= {side.epoch, side.asked, side.told, side.lock, side.answer, side.shared}
        counters |= {side.counter, side.acked}
        if side.request is not None:
            epochs |= {each for each in side.request if each >= 0}
    for message in (*pair.wires[0], *pair.wires[1], *(side.peer for side in pair.sides if side.peer is not None)):
        epochs |= {getattr(message, field) for field in ("epoch", "asked") if hasattr(message, field)}
        counters |= {getattr(message, "counter", 0)}
    e = {value: rank for rank, value in enumerate(sorted(epochs))}
    c = {value: rank for rank, value in enumerate(sorted(counters))}

    def small(message: Message) -> Message:
        if isinstance(message, Begin):
            return Begin(e[message.epoch])
        smaller = message._replace(counter=c[message.counter])
        if isinstance(smaller, Stored):
            return smaller
        if isinstance(smaller, Hello):
            return smaller._replace(epoch=e[smaller.epoch], asked=e[smaller.asked])
        return smaller._replace(epoch=e[smaller.epoch])

    def less(hello: Hello | None) -> Hello | None:
        smaller = small(hello) if hello is not None else None
        return smaller if isinstance(smaller, Hello) else None

    def lesser(side: Side) -> Side:
        request = None if side.request is None else Take(*(each if each < 0 else e[each] for each in side.request))
        return side._replace(
            epoch=e[side.epoch], asked=e[side.asked], told=e[side.told], lock=e[side.lock], answer=e[side.answer],
            shared=e[side.shared], counter=c[side.counter], acked=c[side.acked], request=request, peer=less(side.peer))

    first, second = pair.sides
    there, back = pair.wires
    wires = tuple(map(small, there)), tuple(map(small, back))
    record = LockRecord(e[pair.record.epoch], pair.record.holder)
    return pair._replace(sides=(lesser(first), lesser(second)), wires=wires, record=record)


def without_faults(pair: Pair) -> Pair:
    """The same pair when no fault is to come any more."""
    return pair._replace(left=(0,) * len(pair.left))


class Same:
    """Normal pairs, of which equal parts are the same object: millions of pairs have few different servers."""

    def __init__(self) -> None:
        self._sides: dict[Side, Side] = {}
        self._wires: dict[Wire, Wire] = {}

    def pair(self, pair: Pair) -> Pair:
        pair = normal(pair)
        first, second = (self._sides.setdefault(side, side) for side in pair.sides)
        there, back = (self._wires.setdefault(wire, wire) for wire in pair.wires)
        return pair._replace(sides=(first, second), wires=(there, back))
