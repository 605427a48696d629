"""Bugs that are edits of single functions: each fits the code, changes it, and goes without a trace."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from types import CodeType

import pytest

from harness.nightly.plan_file import read_plan
from nodes.reference.api import ConfigError
from nodes.reference.bugs import BUGS
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.bugs.bug import Bug, Edit
from nodes.reference.bugs.edits import StaleEditError
from nodes.reference.engine.model import Queue
from stormproof.errors import UsageError


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    bug_edits.switch(())


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.edits])
def test_each_edit_fits_the_code_and_can_be_taken_back(name: str) -> None:
    functions = [function for function, _ in bug_edits.codes_of(name)]
    before = [function.__code__ for function in functions]
    bug_edits.switch([name])
    assert bug_edits.edited_now() == {name}
    assert all(function.__code__.co_code != code.co_code or function.__code__.co_consts != code.co_consts
               or function.__code__.co_names != code.co_names
               for function, code in zip(functions, before, strict=True))  # fmt: skip
    bug_edits.switch(())
    assert [function.__code__ for function in functions] == before


def test_an_edited_function_does_what_the_edit_says() -> None:
    queue = Queue(1, "q")
    bug_edits.switch(["given-back-last"])
    queue.requeue(None)  # type: ignore[arg-type]
    assert queue.fresh and not queue.returned


def test_two_bugs_of_one_function_are_both_there() -> None:
    (function, alone), = bug_edits.codes_of("last-waits-first")
    before = function.__code__
    bug_edits.switch(["waiters-stay", "last-waits-first"])
    assert function.__code__ not in (before, alone, bug_edits.codes_of("waiters-stay")[0][1])
    bug_edits.switch(["last-waits-first"])
    assert function.__code__ == alone
    bug_edits.switch(())
    assert function.__code__ is before


def test_two_bugs_that_edit_the_same_piece_are_refused() -> None:
    (function, _), = bug_edits.codes_of("close-drops-unacked")
    before = function.__code__
    with pytest.raises(ConfigError, match="close-drops-unacked and requeued-twice edit the same piece of code"):
        bug_edits.switch(["requeued-twice", "close-drops-unacked"])
    assert function.__code__ is before and bug_edits.edited_now() == frozenset(), "neither of them is there"


def test_an_edit_that_two_bugs_share_is_made_once() -> None:
    bug_edits.switch(["two-holders", "stale-standby-serves"])
    assert bug_edits.edited_now() == {"two-holders", "stale-standby-serves"}


def test_an_edit_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Bug("gone", "", edits=(Edit(".engine.model", "requeue", "nothing of the kind", ""),))
    monkeypatch.setattr(bug_edits, "BUGS", {"gone": gone})
    with pytest.raises(StaleEditError, match="0 functions requeue"):
        bug_edits.switch(["gone"])


def test_edited_bugs_are_listed_with_the_campaign_that_hunts_them(tmp_path: pytest.TempPathFactory) -> None:
    assert all(bug.edits for bug in BUGS.values() if bug.drawn)
    assert BUGS["turns-of-twenty"].test == "--system joram --draw --seeds 300"


def test_a_night_says_that_nothing_exercises_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("night") / "nightly.toml"
    file.write_text("[[case]]\nname = 'm'\nmutants = ['xid-again']\nseeds = '1'\n")
    with pytest.raises(UsageError, match="no test that exercises it"):
        read_plan(file, "salt")


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.edits])
def test_an_edit_uses_names_that_are_there(name: str) -> None:
    """A class that was renamed would end the broker instead of giving it the bug."""
    for function, code in bug_edits.codes_of(name):
        waiting = [code]
        while waiting:
            each = waiting.pop()
            waiting += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
            used = {step.argval for step in dis.get_instructions(each) if step.opname == "LOAD_GLOBAL"}
            assert all(word in function.__globals__ or hasattr(builtins, word) for word in used)
