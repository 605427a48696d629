"""Invariants of a FioranoMQ pair: what each of them says of servers that are in a state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from nodes.reference.designs.fiorano.gateway.grants import LockRecord
from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.fiorano.shared import SharedPair
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE
from nodes.systems.reference.fiorano.probes import FioranoObserved, GatewayObserved, left_of_database
from nodes.systems.reference.fiorano.rules.data import (
    AcknowledgedIsStored,
    AloneInItsOwnEpoch,
    ServesWithAllConfirmed,
)
from nodes.systems.reference.fiorano.rules.roles import RemembersWho


class Server:
    """A server of a pair of which nothing is asked but this."""

    accepts = 0

    def __init__(self, **fields: Any) -> None:
        self.now = FioranoObserved("WAITING", "DEAD", False, 0, False, RepositoryStamp(), 0, 0, False)
        self.began = RepositoryStamp()
        self.step(**fields)

    def step(self, **fields: Any) -> tuple[FioranoObserved, FioranoObserved]:
        before, self.now = self.now, self.now._replace(**fields)
        return self.now, before

    def observed(self) -> FioranoObserved:
        return self.now

    @property
    def stamp(self) -> RepositoryStamp:
        return self.now.stamp

    @property
    def alone(self) -> bool:
        return self.now.alone


def test_who_begins_to_serve_lacks_nothing_that_was_confirmed() -> None:
    def told(began: RepositoryStamp, accepts: int = 0) -> str:
        watcher, active, standby = ServesWithAllConfirmed(), Server(), Server()
        look: Callable[..., str] = watcher.look
        active.began, standby.began = RepositoryStamp(True, 4, 3), began
        assert look("n1", active, *active.step(serves=True, stamp=RepositoryStamp(True, 5, 3))) == ""
        assert look("n1", active, *active.step(confirmed=(5, 7), stamp=RepositoryStamp(True, 5, 8))) == ""
        standby.accepts = accepts
        return look("n2", standby, *standby.step(serves=True, stamp=RepositoryStamp(True, 6, began.counter)))

    fine = told(RepositoryStamp(True, 5, 7)), told(RepositoryStamp(True, 6, 7))
    assert fine == ("", "") and told(RepositoryStamp(True, 5, 6), accepts=1) == ""
    assert "n1 has confirmed change 7 of epoch 5" in told(RepositoryStamp(True, 5, 6))
    assert "n1 has confirmed change 7 of epoch 5" in told(RepositoryStamp(True, 4, 9)), "it served before, and alone"


def test_nobody_confirms_what_the_server_lacks_that_has_begun_since() -> None:
    watcher, former, present = ServesWithAllConfirmed(), Server(), Server()
    look: Callable[..., str] = watcher.look
    present.began = RepositoryStamp(True, 5, 7)
    assert look("n1", former, *former.step(serves=True, stamp=RepositoryStamp(True, 5, 9))) == ""
    assert look("n2", present, *present.step(serves=True, stamp=RepositoryStamp(True, 6, 7))) == ""
    assert look("n1", former, *former.step(confirmed=(5, 7))) == ""
    assert "n2 serves since epoch 6" in look("n1", former, *former.step(confirmed=(5, 8)))


def test_what_a_standby_had_when_it_ended_counts() -> None:
    watcher, active, standby = AcknowledgedIsStored(), Server(), Server(stamp=RepositoryStamp(True, 5, 6))
    look: Callable[..., str] = watcher.look
    assert look("n2", standby, *standby.step()) == ""
    standby.step(stamp=RepositoryStamp(True, 5, 7))
    watcher.ended("n2")
    assert look("n1", active, *active.step(stored=7)) == ""
    assert "up to 8 for stored by n2" in look("n1", active, *active.step(stored=8))


def test_whether_both_are_of_an_epoch_is_asked_as_things_are() -> None:
    watcher, active, standby = AloneInItsOwnEpoch(), Server(), Server(stamp=RepositoryStamp(False, 5, 6))
    look: Callable[..., str] = watcher.look
    assert look("n1", active, *active.step(stamp=RepositoryStamp(True, 5, 6), alone=True)) == ""
    assert look("n2", standby, *standby.step()) == "", "it is in the middle of a synchronisation"
    whole = standby.step(stamp=RepositoryStamp(True, 5, 6))
    assert "n1 may confirm alone" in look("n2", standby, *whole)
    active.step(alone=False)  # it has sent the end, and nobody has looked at it since
    assert look("n2", standby, *whole) == ""


def test_a_lock_file_that_is_deleted_twice_does_not_make_the_gateway_forget() -> None:
    watcher = RemembersWho()
    look: Callable[..., str] = watcher.look
    empty = GatewayObserved(True, 0, "", 0.0, LockRecord(), ("", "", 0))
    granted = empty._replace(epoch=5, holder="n1", last=LockRecord(5, "n1"))
    assert look("gateway", None, empty, None) == look("gateway", None, granted, empty) == ""
    lost = granted._replace(holder="")
    assert look("gateway", None, lost, granted) == ""
    assert "is 5, of none" in look("gateway", None, lost._replace(last=LockRecord(5)), lost)
    assert look("gateway", None, empty, None) == "", "it has been started anew"


def test_a_server_that_is_not_active_has_nothing_left_of_the_shared_database() -> None:
    server = object.__new__(SharedPair)
    server.state, server.waiting, server.commands, server.activated = PASSIVE, deque(), [], False
    assert left_of_database(server) == ""
    server.activated = True
    assert left_of_database(server) == "databases that are held: 1 are left"
    server.state = ACTIVE
    assert left_of_database(server) == ""
