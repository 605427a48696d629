"""A description that was changed after its run was recorded is never judged, whatever was changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checker_histories import depth, drained, sent, sign, store_run, table_of, taken

from checkers.run_check import check_run
from harness.recovery import recover
from stormproof.contracts.check import VALID
from stormproof.errors import HistoryError
from stormproof.history.journal import JournalWriter
from stormproof.history.seal import write_history
from stormproof.operation import INVOKE, OK, Op
from stormproof.run_folder import HISTORY, JOURNAL, RUN_FILE, SEAL, read_run, update_run, with_seal, write_json
from stormproof.store import Store
from stormproof.test import Test

pytestmark = pytest.mark.requirement("H26", part=True)

MUTATIONS = 15_000
GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A valid run whose history tells, as those of today do, that its description has a seal."""
    run_dir = store_run(tmp_path / "r", GOOD)
    write_history(table_of(GOOD, run_dir.name), run_dir.name, run_dir / HISTORY)
    sign(run_dir)
    assert check_run(run_dir).verdict == VALID
    return run_dir


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, name) of nested JSON."""
    for name, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, name
        if isinstance(value, dict | list):
            yield from places(value)


def mutated(info: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A description with one to three places removed, emptied, or replaced by another value of the description."""
    found = copy.deepcopy(info)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        inner, name = rng.choice(list(places(found)))
        others, other = rng.choice(list(places(info)))
        match rng.randrange(5):
            case 0 | 1:
                del inner[name]
            case 2:
                inner[name] = type(inner[name])() if inner[name] is not None else 0
            case 3:
                inner[name] = copy.deepcopy(others[other])
            case _:
                inner[name] = rng.choice((None, True, False, 0, 1, 3, -1, "", "recorded", "broken", "running", [], {}))
    return found


def test_no_mutation_of_a_description_is_valid(sealed: Path) -> None:
    path, rng = sealed / RUN_FILE, random.Random(48)
    text = path.read_text()
    info = json.loads(text)
    for number in range(MUTATIONS):
        changed = mutated(info, rng)
        if number % 10 == 0:
            changed.pop(SEAL, None)
        if number % 20 == 0:
            changed["schema"] = rng.choice((1, 2, 3))
        path.write_text(json.dumps(changed))
        assert changed == info or check_run(sealed).verdict != VALID, changed
    for _ in range(MUTATIONS // 10):
        data = bytearray(text.encode())
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            same = json.loads(data) == info
        except ValueError:
            same = False
        assert same or check_run(sealed).verdict != VALID, bytes(data)


@pytest.mark.parametrize("schema", [3, 4])
def test_a_seal_that_is_gone_is_named_also_where_the_format_is_said_to_be_older(sealed: Path, schema: int) -> None:
    info = json.loads((sealed / RUN_FILE).read_text())
    del info[SEAL]
    write_json(sealed / RUN_FILE, {**info, "schema": schema})
    assert "has lost its seal" in str(check_run(sealed).damage)


def test_a_change_through_the_front_door_is_sealed_and_one_on_top_of_damage_is_refused(sealed: Path) -> None:
    update_run(sealed, note="kept")
    assert check_run(sealed).verdict == VALID
    info = read_run(sealed)
    write_json(sealed / RUN_FILE, {**info, "gates": {}})
    with pytest.raises(HistoryError, match="does not fit its seal"):
        update_run(sealed, note="kept")
    assert "does not fit its seal" in str(check_run(sealed).damage)


def test_a_description_of_before_is_judged_and_told_as_unsealed(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", GOOD)
    info = json.loads((run_dir / RUN_FILE).read_text())
    del info[SEAL]
    write_json(run_dir / RUN_FILE, {**info, "schema": 3})
    found = check_run(run_dir)
    assert found.verdict == VALID and found.sentence.endswith(", description unsealed.")


def test_recover_seals_what_a_dead_harness_left_and_says_so(tmp_path: Path) -> None:
    run_dir = Store(tmp_path).create(Test("joram", "queue", backend="local"))
    assert SEAL not in read_run(run_dir) and with_seal(read_run(run_dir)) == read_run(run_dir)
    writer = JournalWriter(run_dir / JOURNAL, run_dir.name)
    writer.record(Op(INVOKE, "enqueue", (0, 1), 0, 0, 1))
    writer.record(Op(OK, "enqueue", (0, 1), 0, 0, 2, "n1"))
    writer.close()
    assert recover(run_dir).note.endswith("the description is sealed")
    info = read_run(run_dir)
    assert info["status"] == "recorded" and with_seal(info) == info
