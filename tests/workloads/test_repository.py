"""A durable connection's repository: what is accepted survives crashes; damage is told from an unfinished end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from workloads.reference.durable.repository import MessageRepository, RepositoryFull, StoredMessage
from workloads.reference.durable.storage import FileStorage, MemoryStorage, RepositoryError

pytestmark = pytest.mark.requirement("F7", part=True)

ROOT = Path(__file__).resolve().parents[2]


def message(number: int, body: bytes = b"body", session: int = 1) -> StoredMessage:
    return StoredMessage(session, number, "q", {"header": "text"}, body)


def keep(repository: MessageRepository, stored: StoredMessage) -> None:
    repository.demand_room(stored)
    repository.write(stored)
    repository.sync()


def opened(path: Path) -> MessageRepository:
    return MessageRepository(FileStorage(path))


def filled(path: Path, count: int = 4) -> list[int]:
    """A closed repository with so many messages; where the file ended after each of them."""
    repository = opened(path)
    ends = []
    for number in range(count):
        keep(repository, message(number))
        ends.append(path.stat().st_size)
    repository.close()
    return ends


def test_what_was_kept_is_there_again_in_order_and_what_is_done_is_not(tmp_path: Path) -> None:
    repository = opened(tmp_path / "r")
    repository.begin_session()
    for number in (3, 1, 2):
        keep(repository, message(number))
    repository.done(message(1))
    repository.refuse(message(2), "too big")
    repository.close()
    again = opened(tmp_path / "r")
    assert list(again.messages.values()) == [message(3)]
    assert again.session == 1 and again.begin_session() == 2
    assert again.take_refusals() == [(message(2), "too big")] and again.take_refusals() == []
    again.close()
    last = opened(tmp_path / "r")
    assert list(last.messages.values()) == [message(3)] and not last.refusals and last.session == 2
    last.close()


def test_an_end_that_was_cut_off_anywhere_costs_no_message_before_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    ends = filled(path)
    whole = path.read_bytes()
    for size in range(ends[0], len(whole)):
        path.write_bytes(whole[:size])
        repository = opened(path)
        complete = sum(end <= size for end in ends)
        assert [stored.number for stored in repository.messages.values()] == list(range(complete))
        assert repository.set_aside == size - ends[complete - 1]
        keep(repository, message(100))
        repository.close()
        assert not repository.set_aside or path.with_name("r.tail").read_bytes() == whole[ends[complete - 1] : size]
        last = opened(path)
        assert [stored.number for stored in last.messages.values()] == [*range(complete), 100]
        last.close()


def test_damage_before_accepted_messages_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "r"
    ends = filled(path)
    whole = path.read_bytes()
    for place in range(0, ends[-2], 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(RepositoryError) as error:
            opened(path)
        assert "damaged" in str(error.value) or "not a repository" in str(error.value)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
        assert path.read_bytes() == bytes(damaged)


def test_a_damaged_last_message_can_only_be_taken_for_an_unfinished_one_and_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "r"
    ends = filled(path)
    damaged = bytearray(path.read_bytes())
    damaged[ends[-2] + 30] ^= 1
    path.write_bytes(damaged)
    repository = opened(path)
    assert len(repository.messages) == 3 and repository.set_aside == ends[-1] - ends[-2]
    assert path.with_name("r.tail").read_bytes() == bytes(damaged[ends[-2] :])
    repository.close()


def test_damage_in_a_file_that_was_written_anew_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "r"
    repository = opened(path)
    for number in range(40):
        keep(repository, message(number, bytes(20_000)))
    for number in range(36):
        repository.done(message(number))
    repository.close()
    whole = bytearray(path.read_bytes())
    assert len(whole) < 300_000, "it was written anew"
    whole[150] ^= 1
    path.write_bytes(whole)
    with pytest.raises(RepositoryError, match="damaged at byte"):
        opened(path)


@pytest.mark.parametrize("content", [b"something else", b"stormproof repository 2\n" + bytes(8), bytes(64)])
def test_what_is_no_repository_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(RepositoryError, match="not a repository"):
        opened(path)
    assert path.read_bytes() == content


def test_frames_of_the_file_inside_a_message_are_never_taken_for_frames(tmp_path: Path) -> None:
    path = tmp_path / "r"
    filled(path)
    repository = opened(path)
    before = path.stat().st_size
    keep(repository, message(9, path.read_bytes()))
    repository.close()
    path.write_bytes(path.read_bytes()[:-1])
    again = opened(path)
    assert len(again.messages) == 4 and path.stat().st_size == before
    again.close()


def test_a_repository_has_one_user(tmp_path: Path) -> None:
    first = opened(tmp_path / "r")
    with pytest.raises(RepositoryError, match="another client"):
        opened(tmp_path / "r")
    first.close()
    opened(tmp_path / "r").close()


def test_it_is_bounded_and_says_so_before_it_takes_anything() -> None:
    storage = MemoryStorage()
    repository = MessageRepository(storage, max_bytes=1000, max_messages=3)
    with pytest.raises(RepositoryFull):
        repository.demand_room(message(0, bytes(1000)))
    for number in range(3):
        keep(repository, message(number))
    size = len(storage.read())
    with pytest.raises(RepositoryFull, match="3 messages"):
        repository.demand_room(message(3))
    assert len(storage.read()) == size
    repository.refuse(message(0), "no")
    with pytest.raises(RepositoryFull):
        repository.demand_room(message(3))
    repository.done(message(1))
    repository.demand_room(message(3))


def test_after_a_failure_of_the_disk_nothing_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = MessageRepository(MemoryStorage())

    def fail(self: MemoryStorage) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStorage, "sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            keep(repository, message(1))
    with pytest.raises(OSError, match="failed before: Input/output error"):
        keep(repository, message(2))


STEPS = (("keep", 200_000), ("write", 50), ("done", 30), ("session", 0), ("refuse", 30), ("crash", 1 << 30))


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(*(st.tuples(st.just(step), st.integers(0, most)) for step, most in STEPS))))
def test_crashes_lose_nothing_that_was_synced_and_are_never_taken_for_damage(steps: list[tuple[str, int]]) -> None:
    storage = MemoryStorage()
    repository = MessageRepository(storage)
    synced: dict[int, StoredMessage] = {}
    written: dict[int, StoredMessage] = {}
    ended: set[int] = set()
    session, number = 0, 0
    for step, argument in [*steps, ("crash", 1)]:
        event(step)
        here = [each.number for each in repository.messages.values()]
        if step in ("keep", "write"):
            number += 1
            stored = written[number] = StoredMessage(session, number, "q", {}, bytes(argument))
            repository.write(stored)
        elif step == "done" and here:
            stored = written[here[argument % len(here)]]
            repository.done(stored)
            ended.add(stored.number)
        elif step == "refuse" and here:
            stored = written[here[argument % len(here)]]
            repository.refuse(stored, "refused")
        elif step == "session":
            session = repository.begin_session()
        if step == "keep":
            repository.sync()
        if step in ("keep", "session", "refuse"):
            synced = {each: written[each] for each in written if each not in ended}
        if step == "crash":
            storage = storage.crash(random.Random(argument))
            repository = MessageRepository(storage)
            found = {each.number: each for each in repository.messages.values()}
            found |= {each.number: each for each, _ in repository.refusals.values()}
            assert all(found[each] == written[each] for each in synced if each not in ended)
            assert all(found[each] == written[each] for each in found)
            assert list(repository.messages) == sorted(repository.messages)
            assert repository.session >= session
            session = repository.session
            written = found
            synced = dict(found)
            ended -= set(found)


WRITER = """
import sys
from pathlib import Path
from workloads.reference.durable.repository import MessageRepository, StoredMessage
from workloads.reference.durable.storage import FileStorage
repository = MessageRepository(FileStorage(Path(sys.argv[1])))
first = max([m.number for m in repository.messages.values()], default=0)
for number in range(first + 1, first + 1000):
    repository.write(StoredMessage(1, number, "q", {}, bytes(number % 7000)))
    repository.sync()
    print(number, flush=True)
"""


def test_a_killed_process_leaves_all_that_it_had_accepted(tmp_path: Path) -> None:
    accepted: list[int] = []
    for lines in (3, 40, 11):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "r")], cwd=ROOT,
                                 stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        accepted += [int(child.stdout.readline()) for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        accepted += [int(line) for line in child.stdout if line.endswith("\n")]
        child.wait()
        repository = opened(tmp_path / "r")
        numbers = [stored.number for stored in repository.messages.values()]
        assert numbers[: len(accepted)] == accepted and len(numbers) <= len(accepted) + 1
        repository.close()
        accepted = numbers
