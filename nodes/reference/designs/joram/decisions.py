"""A replica's decisions, as pure functions of its knowledge.

Two ways to treat a partitioned network (the document leaves it open):

* ``primary-partition``: a master is installed by a majority of all configured replicas, which promise to reject older
  epochs; it first adopts the most complete log among them. This is the core of Viewstamped Replication (Oki and Liskov
  1988) and Raft (Ongaro and Ousterhout 2014): a command is committed once a majority holds it in the master's epoch, so
  the log of any later master holds it too.
* ``unspecified``: each side continues with the replicas that it can reach. When sides meet, the master whose node comes
  first in the configured order wins, and the other side takes its state.

An epoch is one integer: a round, and the rank of the node that opened it. Each replica promises it to one candidate at
most, so no two masters ever share one. Logs are compared by (epoch of the last entry, index of the last entry), as in
Raft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodes.reference.replication.positions import Position
from nodes.reference.replication.quorum import majority

MAX_MEMBERS = 64


def make_epoch(round_: int, rank: int) -> int:
    """Return the epoch that the node of that rank (place in the configured order) opens in that round."""
    return round_ * MAX_MEMBERS + rank


def round_of(epoch: int) -> int:
    """Return the round of an epoch, which is the number shown to users."""
    return epoch // MAX_MEMBERS


def committed_index(
    acked: Mapping[str, int], view: Sequence[str], replicas: int, ack: str, primary: bool
) -> int:
    """Return the highest committed index, given the highest index that each node holds durably.

    Args:
        acked: node -> index, the master included; counts only acknowledgements in the master's present epoch.
        view: the members of the current view.
        replicas: number of all configured replicas.
    """
    of_view = [acked.get(name, 0) for name in view]
    if primary:
        of_all = sorted(acked.values(), reverse=True)
        needed = majority(replicas)
        by_majority = of_all[needed - 1] if len(of_all) >= needed else 0
        return by_majority if ack == "majority" else min(by_majority, *of_view)
    return sorted(of_view, reverse=True)[majority(len(of_view)) - 1] if ack == "majority" else min(of_view)


def best_log(positions: Mapping[str, Position], me: str) -> str:
    """Return the node with the most complete log: this node if its log is as good as any, otherwise the first best."""
    best = me
    for name, position in positions.items():
        if position.last > positions[best].last:
            best = name
    return best


def new_view(me: str, previous: Sequence[str], willing: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return the members of the view that ``me`` installs as its master.

    The master comes first, then the members of the previous view in their previous order, then the others.
    """
    ranked = [*previous, *(name for name in order if name not in previous)]
    return [me, *(name for name in ranked if name != me and name in willing)]


@dataclass(frozen=True)
class Candidate:
    """A node's knowledge of a node (perhaps itself) that might become master."""

    name: str
    has_log: bool


def candidates(alive: Sequence[Candidate], view: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return the possible masters, first choice first: in the order of the last view, then in the configured order.

    A replica without a log steps back while one with a log is alive.
    """
    some_log = any(node.has_log for node in alive)
    able = [node.name for node in alive if node.has_log or not some_log]
    ranked = [*view, *(name for name in order if name not in view)]
    return [name for name in ranked if name in able]


def may_stand(alive: int, replicas: int, expected: int, again: int, primary: bool, has_log: bool,
              started: bool) -> bool:
    """Tell whether enough replicas are alive for an election.

    The first start of a group waits for ``expected`` replicas. Under ``primary-partition``, a group that has a log
    could restart with a majority, since any majority holds everything that was confirmed. A replica that has not been
    part of the group since it ``started`` nevertheless waits for ``again`` replicas if that is more. Under
    ``unspecified`` the other replicas may have newer entries, so such a replica waits for all expected ones.
    """
    if not primary:
        return started or alive >= expected
    if not has_log:
        return alive >= max(expected, majority(replicas))
    return alive >= max(0 if started else again, majority(replicas))


def has_quorum(granted: int, asked: int, replicas: int, primary: bool) -> bool:
    """Tell whether that many agreeing nodes (this one included) can install a view; ``asked`` counts this one too."""
    return granted >= (majority(replicas) if primary else asked)


@dataclass(frozen=True)
class LeaderClaim:
    """A peer's claim to be master in an epoch."""

    rank: int
    epoch: int


@dataclass(frozen=True)
class LocalState:
    """A node's state when it receives a claim.

    ``leading``: the epoch in which it is master itself, 0 if it is not. ``master``: rank of the live master it follows,
    None without one.
    """

    rank: int
    promised: int
    leading: int = 0
    master: int | None = None


def judge_claim(stance: LocalState, claim: LeaderClaim, primary: bool) -> str:
    """Return the reaction to a claim: ``follow``, ``reject`` (report the newer epoch), ``raise`` (open a newer epoch
    than the rival's), or ``ignore``."""
    newer = claim.epoch >= stance.promised
    if primary or stance.master == claim.rank or (stance.master is None and not stance.leading):
        return "follow" if newer else "reject"
    if stance.leading:
        if claim.rank > stance.rank:
            return "raise" if claim.epoch > stance.leading else "ignore"
        return "follow" if newer else "ignore"
    if stance.master is not None and claim.rank < stance.master:
        return "follow" if newer else "reject"
    return "ignore"


@dataclass(frozen=True)
class Voter:
    """The facts that decide whether a node supports a candidate."""

    promised: int
    has_log: bool
    whole: bool
    leading: bool
    master_alive: bool
    resting: bool


def refusal(voter: Voter, epoch: int, first_start: bool, primary: bool) -> str | None:
    """Return why a node doesn't support a candidate's epoch; None if it does.

    An epoch is promised only once. The ranks of nodes make their epochs differ. But while the group grows two nodes may
    each believe that they have the same rank, and a node that has lost its disk forgets the epochs it opened.

    A node that hears its master refuses. This keeps a candidate with a broken link from deposing the master, and gives
    the master its lease. A node that has just started (``resting``) refuses because it may have granted that lease
    before its restart. A node without a log takes part in a group's first start, and does not count later: it may have
    lost entries that it once acknowledged. The same holds for a node that had no log at its start, until its log is
    ``whole``.
    """
    if epoch <= voter.promised:
        return "this epoch or a newer one is promised"
    if voter.leading:
        return "i am master"
    if voter.master_alive:
        return "my master lives"
    if not primary:
        return None
    if not voter.has_log:
        return None if first_start else "no log"
    if not voter.whole:
        return "what it had is not whole again"
    return "just started" if voter.resting else None

