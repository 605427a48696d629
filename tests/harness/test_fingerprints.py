"""A failure's fingerprint: the same for what failed in the same way, whatever the seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.nightly.fingerprint import broken_fingerprint, fingerprint_of
from harness.run.settings import make_test
from stormproof.run_folder import RUN_SCHEMA


def run_of(folder: Path, failed: Mapping[str, list[str]], *, seed: int = 1, permitted: tuple[str, ...] = (),
           **settings: Any) -> Path:
    """A run in which these checks failed, each with anomalies of these kinds."""
    folder.mkdir()
    test = make_test(system="joram", workload="queue", nemesis="kill", backend="sim", nodes=None, time_limit=20.0,
                     rate=20.0, seed=seed, settings=settings)
    checks = [{"check": name, "decides": True, "verdict": "invalid", "anomalies": [{"kind": kind} for kind in kinds]}
              for name, kinds in failed.items()]
    checks += [{"check": name, "decides": False, "verdict": "invalid", "anomalies": []} for name in permitted]
    verdict = {"schema": 1, "verdict": "invalid" if failed else "valid", "checks": checks}
    (folder / "run.json").write_text(json.dumps({"schema": RUN_SCHEMA, "status": "recorded", "test": test.to_json()}))
    (folder / "verdict.json").write_text(json.dumps(verdict))
    return folder


@pytest.fixture
def code(tmp_path: Path) -> Any:
    folders = iter(range(100))

    def code(failed: Mapping[str, list[str]], **more: Any) -> str:
        found = fingerprint_of(run_of(tmp_path / str(next(folders)), failed, **more))
        assert found is not None
        return found.code

    return code


LOST = {"lost": ["lost"]}


def test_seeds_counts_numbers_and_what_is_permitted_make_no_difference(code: Any) -> None:
    known = code(LOST)
    assert code({"lost": ["lost"] * 9}, seed=77, permitted=("order",)) == known
    assert code(LOST, detection_timeout=0.5, fault_duration=3.0, queues=2, bug="requeued-twice") == known
    assert code({"lost": ["lost", "lost", "late"]}) == known


def test_checks_kinds_and_modes_make_one(code: Any) -> None:
    found = {code(LOST), code({"lost": ["late"]}), code({"lost": ["lost"], "depth": ["left"]}),
             code({"depth": ["left"]}),
             code(LOST, ack="majority"), code({"lost": ["lost"], "duplicated": ["again"]})}
    assert len(found) == 6


def test_the_gravest_check_is_named_first_in_whatever_order_they_ran(tmp_path: Path, code: Any) -> None:
    failed = {"depth": ["left"], "duplicated": ["x"], "lost": ["lost"]}
    first = fingerprint_of(run_of(tmp_path / "a", failed, ack="majority"))
    assert first is not None
    assert first.words == "joram queue (ack=majority): lost (lost), with depth and duplicated"
    assert code({"lost": ["lost"], "depth": ["left"], "duplicated": ["x"]}, ack="majority") == first.code


def test_a_run_that_did_not_fail_has_none(tmp_path: Path) -> None:
    assert fingerprint_of(run_of(tmp_path / "a", {}, permitted=("order",))) is None


def test_runs_that_broke_are_told_apart_by_their_reason() -> None:
    one = broken_fingerprint("joram", "queue", "n1 did not start within 30 s\n(port 4711)")
    assert one == broken_fingerprint("joram", "queue", "n2 did not start within 31 s (port 4712)".replace("n2", "n1"))
    assert one.words == "joram queue: broken: n# did not start within # s (port #)"
    assert one != broken_fingerprint("joram", "queue", "the disk is full")
