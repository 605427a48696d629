"""A manager's conclusions from the answers to its heartbeats: the live members, and the primary they back. No side
effects.

The lease of a primary. A manager permits its broker to continue as the primary of term T until ``lease`` seconds after
it sent the newest heartbeat that a majority (itself included) answered *while they held its decision for T to be in
force*. A member answers a primary's manager as such only as long as it has accepted no newer decision, and notes the
time of its last such answer (``Answers``). Suppose that a majority has accepted a newer decision, and that for each of
these members the time since that note exceeds a lease, by any clock. Then no lease of an earlier term is left: any
majority that had backed it shares a member with this one (Gray and Cheriton 1989; Ongaro's dissertation, 6.4.1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nodes.reference.designs.qpid.manager.messages import Echo
from nodes.reference.designs.qpid.manager.note import decoded_note
from nodes.reference.replication.lease import kth_newest
from nodes.reference.replication.quorum import majority

NEVER = float("-inf")
MAX_AGE = 1e9


class ManagerMembership:
    """The newest answer of each other member, and its arrival time."""

    def __init__(self, node: str, members: Sequence[str]) -> None:
        self.node = node
        self.members = tuple(members)
        self._echoes: dict[str, tuple[Echo, float]] = {}

    @property
    def needed(self) -> int:
        """The number of members that form a majority."""
        return majority(len(self.members))

    def heard(self, peer: str, echo: Echo, now: float) -> None:
        """Note a member's answer to the heartbeat that was sent at ``echo.sent``."""
        known = self._echoes.get(peer)
        if known is None or echo.sent >= known[0].sent:
            self._echoes[peer] = (echo, now)

    def echo(self, peer: str) -> Echo | None:
        """Return a member's last answer."""
        return self._echoes[peer][0] if peer in self._echoes else None

    def quorum_since(self, now: float) -> float:
        """Return the time at which this manager sent the newest heartbeat that a majority has answered."""
        return kth_newest({peer: echo.sent for peer, (echo, _) in self._echoes.items()}, now, len(self.members))

    def backed_since(self, term: int, now: float) -> float:
        """Return the time at which this manager sent the newest heartbeat for which a majority named this node as the
        primary of that term."""
        stamps = {peer: echo.sent for peer, (echo, _) in self._echoes.items()
                  if (echo.term, echo.primary) == (term, self.node)}  # fmt: skip
        return kth_newest(stamps, now, len(self.members))

    def noted_version(self, term: int, own: int) -> int:
        """Return the newest version of this node's note that is stored by a majority which holds its decision to be in
        force.
        """
        versions = [decoded_note(echo.note).version for echo, _ in self._echoes.values()
                    if (echo.term, echo.primary, echo.note[0]) == (term, self.node, term)]  # fmt: skip
        return nth_largest([own, *versions], self.needed)

    def accepted(self, decision: tuple[int, int], now: float) -> dict[str, float]:
        """Return each other member that has accepted exactly this decision -> the minimum time since it last backed the
        primary of an earlier term."""
        return {peer: echo.age + now - came for peer, (echo, came) in self._echoes.items()
                if (echo.ballot, echo.term) == decision}  # fmt: skip


@dataclass
class Answers:
    """The times at which this node last backed a primary, by its own clock.

    ``earlier``: a primary of a term before the present decision's. Before the start of the program it may have done so
    until the last moment.
    """

    earlier: float
    present: float = NEVER

    def backed(self, now: float) -> None:
        """Note that the primary of the present decision is answered, or gets permission from its manager."""
        self.present = now

    def superseded(self) -> None:
        """Note that a decision of another term was accepted."""
        self.earlier, self.present = max(self.earlier, self.present), NEVER

    def age(self, now: float) -> float:
        """Return the seconds since it last backed the primary of an earlier term."""
        return min(now - self.earlier, MAX_AGE)


def leases_are_over(ages: Mapping[str, float], needed: int, caution: float) -> bool:
    """Tell whether no lease of an earlier term is left: a majority has accepted the newer decision and waited since.

    ``ages`` are those of all members that have accepted it.
    """
    return sum(age >= caution for age in ages.values()) >= needed


def nth_largest(values: Sequence[int], place: int) -> int:
    """Return the value at this place in descending order; 0 if there are fewer values."""
    return sorted(values, reverse=True)[place - 1] if len(values) >= place else 0


def best_decision(votes: Collection[tuple[int, int, str]]) -> tuple[int, int, str]:
    """Return the accepted decision (ballot, term, primary) that a new coordinator must keep."""
    return max(votes, key=lambda vote: vote[:2])
