"""A run is judged once, until anything changes that its verdict rests on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from checker_histories import depth, drained, sent, store_run, taken

from checkers import verdict_cache as judged
from checkers import verdict_key
from checkers.lake.table import read_lake
from checkers.run_check import check_run
from checkers.spark.java import JavaMissing
from checkers.spark.job import check_and_store
from checkers.verdict_cache import digest_of_checks, judged_already
from harness.store import recheck
from stormproof.run_folder import LEDGER, VERDICT_FILE

pytestmark = pytest.mark.requirement("H23", part=True)

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
BAD = [*sent(0, (0, 0)), *drained(), *depth()]
NAMES = [f"20260101T00000{number}-joram-queue-{number}-000{number}" for number in range(3)]


@pytest.mark.parametrize("history", [GOOD, BAD], ids=["good", "bad"])
def test_a_verdict_is_taken_over_as_it_was_given(tmp_path: Path, history: Any) -> None:
    run = store_run(tmp_path / NAMES[0], history)
    assert judged_already(run) is None
    check_and_store(run)
    found = judged_already(run)
    assert found is not None
    assert json.dumps(found.to_json(), default=str) == json.dumps(check_run(run).to_json(), default=str)


def _another_verdict(run: Path) -> None:
    data = json.loads((run / VERDICT_FILE).read_text())
    data["checks"][0]["verdict"] = "valid"
    (run / VERDICT_FILE).write_text(json.dumps(data))


def _append(path: Path) -> None:
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n")


@pytest.mark.parametrize("change", [
    lambda run: _append(run / "history.parquet"), lambda run: _append(run / "run.json"),
    lambda run: _append(run / LEDGER), lambda run: (run / LEDGER).touch(),
    lambda run: (run / "logs").mkdir() or (run / "logs" / "n1.log").write_text("INFO"),
    _another_verdict, lambda run: (run / VERDICT_FILE).write_text("{"), lambda run: (run / VERDICT_FILE).unlink(),
])  # fmt: skip
def test_what_has_changed_is_judged_again(tmp_path: Path, change: Any) -> None:
    run = store_run(tmp_path / NAMES[0], BAD)
    check_and_store(run)
    assert judged_already(run) is not None
    change(run)
    assert judged_already(run) is None


def test_a_forged_verdict_is_judged_again_and_the_right_one_is_kept(tmp_path: Path) -> None:
    """Everything in a note but its signature can be made by whoever sends a store."""
    run = store_run(tmp_path / NAMES[0], BAD)
    check_and_store(run)
    data = json.loads((run / VERDICT_FILE).read_text())
    assert data["verdict"] == "invalid"
    for check in data["checks"]:
        check.update(verdict="valid", count=0, anomalies=[])
    data |= {"verdict": "valid", "sentence": "Valid: nothing was lost.", "anomalies": {}}
    note = data.pop("judged")
    for mac in (note["mac"], hashlib.sha256(json.dumps(data).encode()).hexdigest(), "", None, "\u00e9"):
        (run / VERDICT_FILE).write_text(json.dumps({**data, "judged": {**note, "mac": mac}}))
        assert judged_already(run) is None
    check_and_store(run)
    found = judged_already(run)
    assert found is not None and found.verdict == "invalid"


def test_a_key_is_made_once_and_only_one_that_nobody_else_reads_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state" / "stormproof" / "verdict.key"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = store_run(tmp_path / NAMES[0], GOOD)
    check_and_store(run)
    assert judged_already(run) is not None and path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().hex() not in (run / VERDICT_FILE).read_text()
    path.write_bytes(bytes(32))
    verdict_key._key.cache_clear()
    assert judged_already(run) is None, "another user's verdict"
    path.chmod(0o644)
    verdict_key._key.cache_clear()
    check_and_store(run)
    assert "judged" not in json.loads((run / VERDICT_FILE).read_text()), "a key that others read signs nothing"


def test_other_code_judges_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "checkers" / "kernels.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    monkeypatch.setattr(judged, "_ROOT", tmp_path)
    monkeypatch.setattr(judged, "_SOURCES", ("checkers",))
    digests = set()
    for text in ("x = 1\n", "x = 2\n"):
        source.write_text(text)
        digest_of_checks.cache_clear()
        digests.add(digest_of_checks())
    digest_of_checks.cache_clear()
    assert len(digests) == 2


def test_a_run_that_could_not_be_judged_is_looked_at_again(tmp_path: Path) -> None:
    run = store_run(tmp_path / NAMES[0], GOOD)
    whole = (run / "run.json").read_text()
    (run / "run.json").write_text(whole.replace('"gates"', '"other"'))
    check_and_store(run)
    assert json.loads((run / VERDICT_FILE).read_text())["damage"]
    assert judged_already(run) is None


def test_spark_is_not_started_where_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        check_and_store(store_run(tmp_path / name, GOOD if name != NAMES[1] else BAD))

    def checked(**options: Any) -> dict[str, str]:
        assert recheck.check_stored(tmp_path, (), master="local[2]", as_json=True, **options) == 1
        return {run["run"]: run["verdict"] for run in json.loads(capsys.readouterr().out)["runs"]}

    class Started(Exception):
        pass

    def start(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr(recheck, "SparkWarmup", start)
    assert checked() == {NAMES[0]: "valid", NAMES[1]: "invalid", NAMES[2]: "valid"}
    with pytest.raises(Started):
        checked(again=True)
    _append(tmp_path / NAMES[2] / LEDGER)
    with pytest.raises(Started):
        checked()


def test_a_few_runs_are_judged_without_spark_nor_java(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise JavaMissing("there is none")

    runs = [store_run(tmp_path / name, GOOD if name != NAMES[1] else BAD) for name in NAMES]
    monkeypatch.setattr("checkers.spark.session.find_java", missing)
    assert recheck.check_stored(tmp_path, (), master=None, as_json=True) == 1
    told = {run["run"]: run["verdict"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert told == {NAMES[0]: "valid", NAMES[1]: "invalid", NAMES[2]: "valid"}
    assert {row["run"]: row["verdict"] for row in read_lake(tmp_path).to_pylist()} == told
    assert all(judged_already(run) for run in runs)
    with pytest.raises(JavaMissing):
        recheck.check_stored(tmp_path, (), master="local[2]", as_json=True, again=True)
    monkeypatch.setattr("checkers.judge_pool.MAX_RUN_BYTES", 10)
    with pytest.raises(JavaMissing):
        recheck.check_stored(tmp_path, (), master=None, as_json=True, again=True)


def test_what_the_pool_leaves_is_judged_by_spark(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        store_run(tmp_path / name, GOOD)
    monkeypatch.setattr("checkers.judge_pool.digest_of_checks", lambda: "another")
    assert recheck.check_stored(tmp_path, (), master=None, as_json=True) == 0
    told = {run["run"]: run["verdict"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert told == dict.fromkeys(NAMES, "valid")
