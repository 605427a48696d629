"""The hostile corpus: no reader falls for any of it. A refusal is status 3 and one line; never a traceback, never a
verdict of *valid* or *invalid*."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

import pytest
from hostile_corpus import ANYTHING, ENTRIES, Entry, put
from hostile_readers import LENIENT, READERS, REFUSED, STREAMS, Outcome, outcome_of

from nodes.systems.reference.log_events import event_of
from stormproof.errors import EXIT_UNKNOWN
from stormproof.history.read_limits import VARIABLE

SOME = ("random bytes", "lists without end", "a folder")
"""Where a page takes half a second, the others are left to `make soak`."""
MOST_MORE = 300 << 20
"""Bytes that a reader may take for one of these; the bound is far below."""


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2M")


def met(reader: str, path: Path) -> Outcome:
    """What a reader says, which takes no more memory than it may."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = outcome_of(reader, path)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_MORE
    assert "\n" not in found.told and "Traceback" not in found.told
    assert "reading the run failed" not in found.told
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_each_of_the_corpus_is_refused_for_what_it_is(entry: Entry, tmp_path: Path) -> None:
    found = met(entry.reader, put(entry.content, tmp_path / "h"))
    assert found.status == entry.status, found
    assert re.search(entry.told, found.told), found


def all_met(reader: str, folder: Path, contents: Iterable[str]) -> dict[str, Outcome]:
    """What a reader says of each of these."""
    found = {}
    for what in contents:
        (place := folder / what.replace(" ", "-")).mkdir()
        found[what] = met(reader, put(ANYTHING[what], place / "h"))
    return found


@pytest.mark.parametrize("reader", READERS)
def test_what_is_nothing_at_all_is_refused_by_every_reader(reader: str, tmp_path: Path) -> None:
    found = all_met(reader, tmp_path, ANYTHING)
    assert not {
        what: each for what, each in found.items() if each.status not in (REFUSED, EXIT_UNKNOWN) or not each.told
    }


@pytest.mark.parametrize("reader", LENIENT)
@pytest.mark.parametrize("whats", [SOME, pytest.param(ANYTHING, marks=pytest.mark.soak)], ids=["some", "all"])
def test_who_can_do_without_a_file_goes_on_or_says_so_in_one_line(
    reader: str, whats: Iterable[str], tmp_path: Path
) -> None:
    found = all_met(reader, tmp_path, whats)
    assert all(each.status in (None, REFUSED) for each in found.values()), found


@pytest.mark.parametrize("reader", LENIENT)
def test_who_can_do_without_a_file_waits_for_no_pipe(reader: str, tmp_path: Path) -> None:
    for number, stand_in in enumerate((os.mkfifo, lambda path: path.symlink_to("/dev/zero"))):
        (place := tmp_path / str(number)).mkdir()
        assert met(reader, put(stand_in, place / "h")).status in (None, REFUSED)


@pytest.mark.parametrize("reader", STREAMS)
def test_streams_are_refused_or_waited_for(reader: str, tmp_path: Path) -> None:
    found = all_met(reader, tmp_path, ANYTHING)
    assert all(each.status in (None, REFUSED) for each in found.values()), found
    assert sum(each.status == REFUSED for each in found.values()) >= 5, found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["x g=1 " + "repl" * 200_000, "x " + 'a="\\" ' * 100_000],
                         ids=["a word", "open quotes"])
def test_a_long_line_of_a_log_does_not_take_the_square_of_its_length(text: str) -> None:
    """The first was found by the fuzzer of reports."""
    assert event_of(text).event == "x"
