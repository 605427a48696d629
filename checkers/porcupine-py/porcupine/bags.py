"""Bags with repeated values: an order found step by step, without a search.

Values of a bag are independent of each other, except where an operation saw the bag empty. A put may happen as early,
and a take as late, as its operation allows: no other order leaves more values for a take. So if a take finds nothing
then, a history without observations of *empty* is illegal. A history with them is illegal, too, if not even the puts
that have begun suffice.

An observation of *empty* needs an instant at which open takes, and dequeues that never returned, can take all values
inside. Among the instants that need the fewest such dequeues, the last one is chosen. The choice may be wrong: if no
order is found, a search must decide. An order that is found is a linearisation.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from .kernels.codes import BAG_EMPTY, BAG_PUT, BAG_TAKE, BAG_WILD, PENDING
from .models.base import Ints


def bag_illegal(f: Ints, a: Ints, call: Ints, ret: Ints) -> int:
    """Return the place of a take at whose end more takes had ended than puts had begun, or -1.

    For a history without observations of *empty*, -1 means that it is linearizable.
    """
    begun: dict[int, int] = defaultdict(int)
    for at, i in _events(call, ret):
        if f[i] == BAG_PUT and at == call[i]:
            begun[int(a[i])] += 1
        elif f[i] == BAG_TAKE and at != call[i]:
            begun[int(a[i])] -= 1
            if begun[int(a[i])] < 0:
                return i
    return -1


def bag_order(f: Ints, a: Ints, call: Ints, ret: Ints) -> tuple[list[int], dict[int, int]] | None:
    """Return the places in the order of a linearisation, and the value taken by each dequeue that never returned.

    Returns None if no order was found. Operations that never returned are included only if they are needed.
    """
    bag = _Bag(f, a, call, ret)
    order = bag.run()
    return None if order is None else (order, bag.took)


def _events(call: Ints, ret: Ints) -> list[tuple[int, int]]:
    """Return (position, place) of calls and returns, in order of time."""
    calls = [(at, i) for i, at in enumerate(call.tolist())]
    return sorted(calls + [(at, i) for i, at in enumerate(ret.tolist()) if at != PENDING])


_Heaps = dict[int, list[tuple[int, int]]]
_Saved = tuple[int, int, dict[int, int], _Heaps, _Heaps, list[int], tuple[int, int], frozenset[int]]


class _Bag:
    """The bag at one instant, and the open operations that have not happened yet."""

    def __init__(self, f: Ints, a: Ints, call: Ints, ret: Ints) -> None:
        self.f, self.a, self.ret = f.tolist(), a.tolist(), ret.tolist()
        self.call = call.tolist()
        self.events = _events(call, np.asarray(ret))
        self.inside: dict[int, int] = {}
        self.puts: dict[int, list[tuple[int, int]]] = defaultdict(list)  # heaps of (return, place)
        self.takes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.wild: list[int] = []
        self.empties: set[int] = set()
        self.total = self.takeable = 0
        self.happened = [False] * len(self.f)
        self.order: list[int] = []
        self.took: dict[int, int] = {}  # dequeue that never returned -> the value that it took
        self.kept: dict[int, _Saved] = {}  # number of dequeues needed that never returned -> the last such instant

    def run(self) -> list[int] | None:
        """Return the order of all operations that had to happen, or None."""
        number = 0
        while number < len(self.events):
            at, i = self.events[number]
            if at == self.call[i]:
                self.begin(i)
            elif not self.happened[i] and self.f[i] == BAG_EMPTY:
                # Go back to the instant that needs the fewest dequeues that never returned.
                instants = [(spent, kept) for spent, kept in self.kept.items() if i in kept[-1]]
                if not instants:
                    return None
                number = self.restore(min(instants)[1])
                self.make_empty()
            elif not self.happened[i] and not self.end(i):
                return None
            number += 1
            if self.empties and self.total - self.takeable <= len(self.wild):
                self.kept[self.total - self.takeable] = self.save(number - 1)
        return self.order

    def save(self, number: int) -> _Saved:
        puts, takes = ({v: [*heap] for v, heap in heaps.items() if heap} for heaps in (self.puts, self.takes))
        rest = ({**self.inside}, puts, takes, [*self.wild], (self.total, self.takeable))
        return (number, len(self.order), *rest, frozenset(self.empties))

    def restore(self, saved: _Saved) -> int:
        """Restore a saved instant; return the number of its last event."""
        number, length, inside, puts, takes, wild, (self.total, self.takeable), empties = saved
        for i in self.order[length:]:
            self.happened[i] = False
        del self.order[length:]
        self.inside = {**inside}
        self.puts, self.takes = (
            defaultdict(list, {v: [*heap] for v, heap in heaps.items()}) for heaps in (puts, takes)
        )
        self.wild, self.empties = [*wild], set(empties)
        self.kept = {}
        return number

    def begin(self, i: int) -> None:
        f, v = self.f[i], self.a[i]
        if f == BAG_PUT:
            heapq.heappush(self.puts[v], (self.ret[i], i))
        elif f == BAG_TAKE:
            heapq.heappush(self.takes[v], (self.ret[i], i))
            self.change(v, 0, 1)
        elif f == BAG_WILD:
            self.wild.append(i)
        elif self.ret[i] != PENDING:
            self.empties.add(i)

    def end(self, i: int) -> bool:
        """Place the linearization point of an operation that returns now; return False if this is impossible."""
        f, v = self.f[i], self.a[i]
        if f == BAG_PUT:
            self.puts[v].remove((self.ret[i], i))
            heapq.heapify(self.puts[v])
            self.put(i)
            return True
        if v not in self.inside:
            if not self.puts[v]:
                return False
            self.put(heapq.heappop(self.puts[v])[1])
        self.takes[v].remove((self.ret[i], i))
        heapq.heapify(self.takes[v])
        self.happen(i)
        self.change(v, -1, -1)
        return True

    def change(self, v: int, inside: int, open_takes: int) -> None:
        """Update the totals after ``open_takes`` more takes of a value were opened and ``inside`` more of it were put.
        """
        takes, before = len(self.takes[v]), self.inside.pop(v, 0)
        self.total += inside
        self.takeable += min(before + inside, takes) - min(before, takes - open_takes)
        if before + inside:
            self.inside[v] = before + inside

    def put(self, i: int) -> None:
        self.happen(i)
        self.change(self.a[i], 1, 0)

    def happen(self, i: int) -> None:
        self.happened[i] = True
        self.order.append(i)

    def make_empty(self) -> None:
        """Let open takes, in the order of their returns, and dequeues that never returned take everything inside."""
        for v in list(self.inside):
            while v in self.inside:
                if self.takes[v]:
                    self.happen(heapq.heappop(self.takes[v])[1])
                    self.change(v, -1, -1)
                else:
                    self.took[self.wild[-1]] = v
                    self.happen(self.wild.pop())
                    self.change(v, -1, 0)
        for i in sorted(self.empties):
            self.happen(i)
        self.empties.clear()
        self.kept = {}
