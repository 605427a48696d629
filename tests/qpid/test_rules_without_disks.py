"""Rules whose nodes' disks lose what they had synced: they forget what that node can't be asked for, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.reference.designs.fiorano.repository import RepositoryStamp
from nodes.reference.designs.qpid.manager.note import Note
from nodes.systems.reference.fiorano.probes import FioranoObserved
from nodes.systems.reference.fiorano.rules.data import RepositoryStampsGrow
from nodes.systems.reference.qpid.manager_probes import ManagerObserved
from nodes.systems.reference.qpid.probes import QpidObserved
from nodes.systems.reference.qpid.rules.data import GenerationsGrow
from nodes.systems.reference.qpid.rules.roles import OneCoordinatorABallot, RecordsGrow
from nodes.systems.reference.qpid.rules.wire import CompletedIsStored, completed
from stormproof.contracts.invariant import Watcher


def record(promised: int, leads: int = 0) -> ManagerObserved:
    return ManagerObserved("following", leads, promised, 0, 0, "", 0, 0, Note(), 0, 0.0, 0.0)


def store(generation: int) -> QpidObserved:
    return QpidObserved("ready", 0, False, 0.0, "dirty", "backup", generation, 1, True, False, 0, "", 0)


def repository(epoch: int) -> FioranoObserved:
    return FioranoObserved("WAITING", "DEAD", False, 0, False, RepositoryStamp(True, epoch, 1), epoch, 0, False)


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("watcher", "older", "newer"), [
    (RecordsGrow, record(1), record(3)), (GenerationsGrow, store(1), store(3)),
    (RepositoryStampsGrow, repository(1), repository(3)),
])  # fmt: skip
def test_what_a_disk_has_lost_need_not_grow(watcher: type[Watcher], older: Any, newer: Any) -> None:
    rule, program = watcher(), SimpleNamespace(store_error="")
    for node in ("n1", "n2"):
        assert not rule.look(node, program, newer, older)
    rule.disk_lost("n1")
    assert not rule.look("n1", program, newer, older)  # it may run on without its files
    assert not rule.look("n1", program, older, None)
    assert rule.look("n2", program, older, None)  # its disk has lost nothing


@pytest.mark.requirement("H17", part=True)
def test_managers_agree_until_one_of_them_has_forgotten() -> None:
    right, forgetful = OneCoordinatorABallot(), OneCoordinatorABallot()
    forgetful.disk_lost("n3.manager")
    for rule in (right, forgetful):
        assert not rule.look("n1.manager", cast(Any, None), record(5, 5), None)
    assert right.look("n2.manager", cast(Any, None), record(5, 5), None)
    assert not forgetful.look("n2.manager", cast(Any, None), record(5, 5), None)


def test_only_a_backups_word_is_read_as_such() -> None:
    assert completed(bytes([4]) + (7).to_bytes(8, "big") + (1).to_bytes(8, "big")) == 7
    for other in (b"", b"\\4", bytes([3]) + bytes(16), ["renew"], None):
        assert completed(other) is None
    assert not CompletedIsStored().sent("n1", "n2", ["renew"])
