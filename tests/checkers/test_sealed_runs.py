"""A description that was changed after its run was recorded is never judged, whatever was changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from checker_histories import Row, depth, drained, sent, sign, store_run, table_of, taken

from checkers.run_check import check_run
from harness.run.recovery import recover
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


OTHER = [*sent(0, (0, 0)), *sent(0, (0, 1)), *taken(1, (0, 0)), *taken(1, (0, 1)), *drained(), *depth()]
"""A valid history of another run."""


def sealed_run(run_dir: Path, rows: Sequence[Row], **info: Any) -> Path:
    """A valid run whose history tells, as those of today do, that its description has a seal."""
    store_run(run_dir, rows, **info)
    write_history(table_of(rows, run_dir.name), run_dir.name, run_dir / HISTORY)
    sign(run_dir)
    assert check_run(run_dir).verdict == VALID
    return run_dir


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    return sealed_run(tmp_path / "r", GOOD)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another valid run, of another test, with fewer guarantees and no gates."""
    test = {"workload": "queue", "nodes": 5, "nemesis": [], "seed": 2, "rate": 100}
    return sealed_run(tmp_path / "s", OTHER, test=test, guarantees=["lost"], gates={}, note="of another run")


class Pairs(list[tuple[str, Any]]):
    """A JSON object that keeps names that come twice."""


def written(data: Any) -> str:
    """JSON of nested data, with ``Pairs`` as objects."""
    if isinstance(data, Pairs):
        return f"{{{', '.join(f'{json.dumps(name)}: {written(value)}' for name, value in data)}}}"
    if isinstance(data, dict):
        return written(Pairs(data.items()))
    return f"[{', '.join(map(written, data))}]" if isinstance(data, list) else json.dumps(data)


def same(one: Any, two: Any) -> bool:
    """Whether JSON says the same: for Python, ``True`` is 1 and ``1.0`` too, and of a doubled name the last counts."""
    return written(in_order(one)) == written(in_order(two))


def in_order(data: Any) -> Any:
    """Nested JSON, ``Pairs`` or not, with the names of objects in order."""
    if isinstance(data, Pairs | dict):
        pairs = data if isinstance(data, Pairs) else data.items()
        ordered = ((name, in_order(value)) for name, value in pairs)
        return Pairs(sorted(ordered, key=lambda pair: (pair[0], written(pair[1]))))
    return [in_order(value) for value in data] if isinstance(data, list) else data


LOOK_ALIKES = str.maketrans("acdeijopsxy", "асԁеіјорѕху")


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


def demand_refused(run_dir: Path, text: str, info: dict[str, Any]) -> bool:
    """Whether a description counts as a mutation; raises AssertionError where one is judged as valid."""
    if same(json.loads(text, object_pairs_hook=Pairs), info):
        return False
    (run_dir / RUN_FILE).write_text(text)
    assert check_run(run_dir).verdict != VALID, text
    return True


def doubled(info: dict[str, Any], others: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A description in which a name comes twice, with another value before or after its own."""
    found = copy.deepcopy(info)
    inner, name = rng.choice([place for place in places(found) if isinstance(place[0], dict)])
    value = rng.choice((None, [], {}, 0, "recorded", copy.deepcopy(others.get(name)), mutated(info, rng)))
    again = [(name, inner[name]), (name, value)]
    rng.shuffle(again)
    pairs = Pairs(pair for key, kept in inner.items() for pair in (again if key == name else [(key, kept)]))
    return pairs if inner is found else replaced(found, inner, pairs)


def replaced(data: Any, inner: Any, by: Any) -> Any:
    """Nested JSON with one of its containers replaced."""
    if data is inner:
        return by
    if isinstance(data, dict):
        return {name: replaced(value, inner, by) for name, value in data.items()}
    return [replaced(value, inner, by) for value in data] if isinstance(data, list) else data


def from_another(info: dict[str, Any], others: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A description with some fields of another run's, at the top or in its test."""
    found = copy.deepcopy(info)
    for _ in range(rng.choice((1, 1, 2, 5))):
        mine, theirs = rng.choice(((found, others), (found["test"], others["test"])))
        name = rng.choice(sorted({*mine, *theirs}))
        if name in theirs:
            mine[name] = copy.deepcopy(theirs[name])
        else:
            mine.pop(name, None)
        if not isinstance(found.get("test"), dict):
            break
    return found


def look_alike(info: dict[str, Any], _: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A description with a name or a text in letters that look the same, are wider, or are not seen."""
    found = copy.deepcopy(info)
    inner, name = rng.choice([(inner, name) for inner, name in places(found)
                              if isinstance(name, str) or isinstance(inner[name], str)])  # fmt: skip
    change = rng.choice((
        lambda text: text.translate(LOOK_ALIKES), lambda text: f"{text}\u200b", lambda text: f"\ufeff{text}",
        lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
        lambda text: f"{text[:1]}\u0301{text[1:]}", lambda text: text.upper(), lambda text: f"{text} ",
        lambda text: f"{text}\u0000", lambda text: f"{text}\ud800",
    ))  # fmt: skip
    if isinstance(inner[name], str) and rng.random() < 0.5:
        inner[name] = change(inner[name])
    elif isinstance(name, str):
        inner[change(name)] = inner.pop(name)
    return found


@pytest.mark.parametrize("kind", [doubled, from_another, look_alike])
def test_no_confusion_of_a_description_is_valid(sealed: Path, other: Path, kind: Callable[..., Any]) -> None:
    info, others = (json.loads((run / RUN_FILE).read_text()) for run in (sealed, other))
    rng, counted = random.Random(kind.__name__), 0
    for _ in range(MUTATIONS // 10):
        counted += demand_refused(sealed, written(kind(info, others, rng)), info)
    assert counted > MUTATIONS // 20


def test_the_description_of_another_run_is_never_valid(sealed: Path, other: Path) -> None:
    """Also where the names of runs and the digests of the history in it are set right."""
    info, others = (json.loads((run / RUN_FILE).read_text()) for run in (sealed, other))
    digests = [name for name in info if name.endswith("_sha256")]
    assert SEAL in digests
    for mask in range(1 << len(digests)):
        taken_over = {name: info[name] for bit, name in enumerate(digests) if mask >> bit & 1}
        for named in ({}, {"run": info["run"]}, {"run": info["run"], "test": info["test"]}):
            assert demand_refused(sealed, json.dumps({**others, **taken_over, **named}), info)


def test_no_mutation_of_a_description_is_valid(sealed: Path) -> None:
    path, rng = sealed / RUN_FILE, random.Random(48)
    text = path.read_text()
    info = json.loads(text)
    counted = number = 0
    while counted < MUTATIONS:
        number += 1
        changed = mutated(info, rng)
        if number % 10 == 0:
            changed.pop(SEAL, None)
        if number % 20 == 0:
            changed["schema"] = rng.choice((1, 2, 3))
        counted += demand_refused(sealed, json.dumps(changed), info)
    for _ in range(MUTATIONS // 10):
        data = bytearray(text.encode())
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            unchanged = same(json.loads(data, object_pairs_hook=Pairs), info)
        except ValueError:
            unchanged = False
        assert unchanged or check_run(sealed).verdict != VALID, bytes(data)


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
