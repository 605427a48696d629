"""How runs and nights differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.run_diff import (
    NightDifference,
    compare,
    compare_nights,
    compare_runs,
    last_valid_like,
    write_twin,
)
from harness.nightly.record import Night, NightResult
from stormproof.errors import HistoryError, UsageError
from stormproof.history.journal import JournalWriter
from stormproof.history.seal import seal
from stormproof.operation import INVOKE, OK, Op
from stormproof.run_folder import RUN_SCHEMA

OPS = [Op(INVOKE, "enqueue", (2, 7), 0, 0, 10**9), Op(OK, "enqueue", (2, 7), 0, 0, 2 * 10**9, "n1"),
       Op(INVOKE, "dequeue", None, 1, 0, 3 * 10**9)]  # fmt: skip


def run_of(folder: Path, ops: list[Op] = OPS, roles: list[dict[str, Any]] | None = None, verdict: str = "valid",
           **options: Any) -> Path:
    folder.mkdir(parents=True)
    test = {"system": "joram", "seed": 1, "options": options}
    (folder / "run.json").write_text(json.dumps({"schema": RUN_SCHEMA, "status": "recorded", "test": test}))
    checks = [{"check": "lost", "verdict": verdict}]
    (folder / "verdict.json").write_text(json.dumps({"schema": 1, "sentence": f"It is {verdict}.", "checks": checks}))
    (folder / "log-events.jsonl").write_text("".join(json.dumps(role) + "\n" for role in roles or []))
    writer = JournalWriter(folder / "journal.bin", folder.name)
    for op in ops:
        writer.record(op)
    writer.close()
    return folder


def role(time: float, node: str, name: str) -> dict[str, Any]:
    return {"event": "role", "time": time, "node": node, "role": name, "group": ""}


def test_the_same_run_does_not_differ(tmp_path: Path) -> None:
    found = compare_runs(run_of(tmp_path / "a"), run_of(tmp_path / "b"))
    assert (found.settings, found.verdicts, found.history, found.roles) == ({}, {}, ("", ""), ("", ""))
    assert "history: no difference" in found.lines()


def test_settings_verdicts_operations_and_roles_are_compared(tmp_path: Path) -> None:
    later = [OPS[0], Op(OK, "enqueue", (2, 7), 0, 0, 9 * 10**9, "n2")]
    first = run_of(tmp_path / "a", roles=[role(1, "n1", "master"), role(2, "n2", "slave")], ack="all")
    second = run_of(tmp_path / "b", later, [role(5, "n1", "master")], "invalid", ack="majority", more=1)
    found = compare_runs(first, second)
    assert found.settings == {"ack": ("all", "majority"), "more": ("-", 1)}
    assert found.verdicts == {"lost": ("valid", "invalid")}
    assert found.history == ("2.000 s, operation 1: process 0 ok enqueue 2/7 at n1",
                             "9.000 s, operation 1: process 0 ok enqueue 2/7 at n2")
    assert found.roles == ("2.000 s: n2 slave", "")


def test_a_run_that_is_the_beginning_of_another_ends_first(tmp_path: Path) -> None:
    found = compare_runs(run_of(tmp_path / "a", OPS[:2]), run_of(tmp_path / "b"))
    assert found.history == ("", "3.000 s, operation 2: process 0 invoke dequeue")


def test_nights_differ_by_kinds_of_failure_and_shares(tmp_path: Path) -> None:
    def night(name: str, *results: tuple[str, str, str]) -> Night:
        made = [NightResult(cell, seed, verdict, "", 1.0, "", "", code, f"words of {code}" if code else "")
                for seed, (cell, verdict, code) in enumerate(results)]
        return Night(tmp_path / name, {}, made)

    first = night("n1", ("x", "invalid", "a"), ("x", "valid", ""), ("y", "valid", ""), ("z", "invalid", "b"))
    second = night("n2", ("x", "valid", ""), ("y", "valid", ""), ("y", "valid", ""), ("z", "invalid", "b"),
                   ("w", "invalid", "c"))
    found = compare_nights(first, second)
    assert found.gone == {"a": ("words of a", 1)}
    assert found.come == {"c": ("words of c", 1)}
    assert found.both == {"b": ("words of b", 1, 1)}
    assert found.cells == {"x": ((1, 2), (1, 1))}
    assert list(compare_nights(first, first).lines())[-1] == "no difference"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    run_of(tmp_path / "20261101T000000-joram-queue-1-0a1b")
    with pytest.raises(UsageError, match="no run 'nosuch'"):
        compare(tmp_path, "nosuch", "latest")


@pytest.mark.requirement("H22", part=True)
def test_differences_as_pages(tmp_path: Path) -> None:
    later = [OPS[0], Op(OK, "enqueue", (2, 7), 0, 0, 9 * 10**9, "n2<b>")]
    first = run_of(tmp_path / "a", ack="<b>all")
    second = run_of(tmp_path / "b", later, verdict="invalid", ack="majority")
    page = compare_runs(first, second).write_page(tmp_path / "runs.html", tmp_path).read_text()
    for told in ("ack", "&lt;b&gt;all", "majority", "It is invalid.", "operation 1", "n2&lt;b&gt;"):
        assert told in page, told
    assert "<b>" not in page and "default-src &#39;none&#39;" in page
    same = compare_runs(first, first).write_page(tmp_path / "same.html", tmp_path).read_text()
    assert same.count("No difference.") == 2 and "Nowhere." in same
    found = NightDifference(("one", "two"), {"aa": ("gone <b>", 3)}, {"bb": ("come", 2)}, {"cc": ("both", 1, 4)},
                            {"cell": ((1, 5), (4, 5))})  # fmt: skip
    page = found.write_page(tmp_path / "nights.html", tmp_path).read_text()
    rows = ["<td>gone &lt;b&gt; (aa)</td><td>3</td><td>0</td>", "<td>come (bb)</td><td>0</td><td>2</td>",
            "<td>both (cc)</td><td>1</td><td>4</td>", "<td>cell</td><td>1 of 5</td><td>4 of 5</td>",
            "one: 2 kinds of failure", "two: 2 kinds of failure"]  # fmt: skip
    assert [row for row in rows if row not in page] == []
    with pytest.raises(HistoryError, match="can't write"):
        found.write_page(tmp_path / "nowhere" / "nights.html", tmp_path)


def beside(folder: Path, name: str, verdict: str, **options: Any) -> Path:
    roles = [role(1, "n1", "master"), role(2, "n2", "<slave>")]
    run_dir = run_of(folder / name, verdict=verdict, roles=roles, **options)
    stored = json.loads((run_dir / "verdict.json").read_text())
    (run_dir / "verdict.json").write_text(json.dumps({**stored, "verdict": verdict}))
    seal(run_dir)
    return run_dir


@pytest.mark.requirement("H25")
def test_the_last_valid_run_of_the_same_test_is_found(tmp_path: Path) -> None:
    bad = beside(tmp_path, "20260501T000000-joram-queue-1-0001", "invalid", ack="all", more=1)
    assert last_valid_like(tmp_path, bad) is None
    assert write_twin(tmp_path, bad) is None
    beside(tmp_path, "20260501T000001-joram-queue-1-0002", "valid", ack="majority", more=2)
    like = beside(tmp_path, "20260501T000002-joram-queue-1-0003", "valid", ack="all", more=2)
    beside(tmp_path, "20260501T000003-joram-queue-1-0004", "invalid", ack="all", more=1)
    (beside(tmp_path, "20260501T000004-joram-queue-1-0005", "valid", ack="all", more=2) / "run.json").write_text("{")
    assert last_valid_like(tmp_path, bad) == like
    with pytest.raises(UsageError, match="no valid run of the same test"):
        compare(tmp_path / "none", str(bad))
    assert compare(tmp_path, bad.name).settings == {"more": (1, 2)}


@pytest.mark.requirement("H25")
def test_a_run_beside_its_twin_as_a_page(tmp_path: Path) -> None:
    bad = beside(tmp_path, "20260501T000000-joram-queue-1-0001", "invalid", partitions="<b>unspecified")
    good = beside(tmp_path, "20260501T000001-joram-queue-1-0002", "valid", partitions="primary")
    page = write_twin(tmp_path, bad, good)
    assert page == bad / "twin.html"
    text = page.read_text()
    assert "&lt;b&gt;unspecified" in text
    assert "<b>unspecified" not in text
    assert "n2: &lt;slave&gt;" in text
    assert f"../{good.name}/report.html" in text
    assert "Roles in both runs" in text


@pytest.mark.requirement("H25")
def test_two_runs_stand_on_one_axis_that_begins_with_the_load_of_each(tmp_path: Path) -> None:
    """The first run of a demo may wait for its image: that must not shift it against its twin."""
    runs = []
    for name, set_up in (("slow", 39), ("quick", 1)):
        ops = [op._replace(time=op.time + set_up * 10**9) for op in OPS]
        roles = [role(0.5, "n1", "backup"), role(set_up + 2, "n1", "master")]
        run_dir = run_of(tmp_path / name, ops, roles)
        seal(run_dir)
        run = json.loads((run_dir / "run.json").read_text())
        phases = [{"name": "start", "start": 0, "end": set_up * 10**9},
                  {"name": "main", "start": set_up * 10**9, "end": (set_up + 4) * 10**9}]
        (run_dir / "run.json").write_text(json.dumps({**run, "phases": phases}))
        runs.append(run_dir)
    page = compare_runs(*runs).write_page(tmp_path / "twin.html", tmp_path)
    text = page.read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert text.count("<title>n1: master, 2.000 s – 3.000 s") == 2
    assert text.count("<title>n1: backup, 0.000 s – 2.000 s") == 2
    assert "after 39.000 s of set-up in A and 1.000 s of set-up in B" in text
