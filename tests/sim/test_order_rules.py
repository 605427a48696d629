"""Rules about the order of what replicas agree to, and about a group that falls back to the configured one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nodes.systems.reference.icestorm.rules.order import AgreesInOrder
from nodes.systems.reference.joram.rules.members import TellsItsGroup

PROMISE = ("promise", ["g", 65])
INSTALL = ("install", ["g", 65, [65, 0, 0.0], None])
READY = ("ready", ["g", 65, ["n1", "n2"], 3])


def update(counter: int, group: str = "g") -> tuple[str, list[Any]]:
    return "update", [group, 65, [65, counter, 0.0], ["create", "t"]]


def talk(*asked: tuple[str, list[Any]], refused: int = -1, ended: int = -1) -> str:
    """What the rule finds when n1 asks n2 all that in turn, and n2 refuses one question, or ends after one."""
    watcher = AgreesInOrder()
    for number, (question, about) in enumerate(asked):
        answer = [65, 0, 0.0] if question == "promise" else number != refused
        found = (watcher.sent("n1", "n2", ["ask", number, question, about])
                 or watcher.sent("n2", "n1", ["answer", number, answer]))  # fmt: skip
        if found:
            return found
        if number == ended:
            watcher.ended("n1")
    return ""


@pytest.mark.parametrize(("asked", "refused", "wrong"), [
    ((PROMISE, INSTALL, READY, update(1), update(2)), -1, ""),
    ((INSTALL,), -1, "which it has not promised"),
    ((PROMISE, ("install", ["g", 129, [129, 0, 0.0], None])), -1, "which it has not promised"),
    ((PROMISE, ("install", ["h", 65, [65, 0, 0.0], None])), -1, "which it has not promised"),
    ((PROMISE, READY), -1, "n2 has not installed its database"),
    ((PROMISE, INSTALL, READY), 1, "n2 has not installed its database"),
    ((PROMISE, INSTALL, READY, update(2)), -1, "sends n2 change 2 of its group, and n2 has acknowledged 0 last"),
    ((PROMISE, INSTALL, READY, update(1), update(2)), 3, "sends n2 change 2 of its group, and n2 has acknowledged 0"),
    ((PROMISE, INSTALL, READY, update(1), update(1, "h")), -1, "n2 has not installed its database"),
    ((PROMISE, INSTALL, READY, update(1)), 3, ""),
    ((("ready", ["g", 0, ["n1", "n2"], 2]), ("are-you-mine", ["g"])), -1, ""),
])  # fmt: skip
def test_replicas_agree_in_order(asked: tuple[tuple[str, list[Any]], ...], refused: int, wrong: str) -> None:
    found = talk(*asked, refused=refused)
    assert wrong in found and bool(found) is bool(wrong), found


def test_an_ended_coordinators_questions_are_not_answered() -> None:
    watcher = AgreesInOrder()
    for number, (question, about) in enumerate((PROMISE, INSTALL)):
        assert not watcher.sent("n1", "n2", ["ask", number, question, about])
    watcher.ended("n1")
    assert not watcher.sent("n2", "n1", ["answer", 0, [65, 0, 0.0]])
    assert not watcher.sent("n2", "n1", ["answer", 1, True]), "it belongs to nobody's question"
    assert watcher.sent("n1", "n2", ["ask", 0, *READY])


@pytest.mark.parametrize(("entries", "used", "wrong"), [
    ([], ["n1", "n2"], False),
    ([], ["n1", "n2", "n3"], True),  # n3 was added by an entry that is gone
    ([["n1", "a"], ["n2", "b"], ["n3", "c"]], ["n1", "n2", "n3"], False),
    ([["n1", "a"], ["n2", "b"], ["n3", "c"]], ["n1", "n2"], True),
])  # fmt: skip
def test_a_group_is_that_of_the_log_or_as_configured(entries: list[list[str]], used: list[str], wrong: bool) -> None:
    program: Any = SimpleNamespace(
        log=SimpleNamespace(group_at=lambda index: entries), configured=[["n1", "a"], ["n2", "b"]], group=used,
        status=lambda: {"replicas": used}, admission=lambda: SimpleNamespace(accepted=False))  # fmt: skip
    now: Any = SimpleNamespace(last=7, base=0, group_index=0, serving=False)
    found = TellsItsGroup().look("n1", program, now, None)
    assert bool(found) is wrong, found
