"""Fuzzing of every reader and both wire protocols, in `make soak`; and that the fuzzer finds what it should."""

from __future__ import annotations

import os
import random
from pathlib import Path

import hostile_fuzz
import pytest
from hostile_fuzz import Mutator, Result, Target, fuzz, in_child
from hostile_targets import TARGETS

SECONDS = float(os.environ.get("STORMPROOF_FUZZ_SECONDS", "120"))
"""For each target."""
SEED = int(os.environ.get("STORMPROOF_FUZZ_SEED", "1"))

LOG = os.environ.get("STORMPROOF_FUZZ_LOG", os.devnull)
"""A file that gets a line of JSON for each target."""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS * 3 + 900)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_reader(name: str, tmp_path: Path) -> None:
    found = in_child(name, SECONDS, SEED, tmp_path)
    with Path(LOG).open("a") as log:
        print(found.line(), file=log)
    assert not found.finding, f"{found.finding}; the input is in {tmp_path}, as base64: {found.input}"
    assert found.inputs > 10


def found_in(run: object, seconds: float = 20.0) -> Result:
    assert callable(run)
    target = Target(run, [b'{"a": 1, "b": [true]}'], ["tests/hostile/test_hostile_fuzz"], [b"bomb"], is_json=True)
    return fuzz("x", target, seconds, 1, lambda _: None)


def test_the_fuzzer_finds_what_lies_behind_several_conditions() -> None:
    def run(data: bytes) -> None:
        if not data.startswith(b"{"):
            return
        if b"bomb" not in data:
            return
        if b"-1" in data:
            raise ZeroDivisionError("found")

    found = found_in(run)
    assert found.finding.startswith("ZeroDivisionError: found")
    assert found.inputs > 2


def test_a_process_that_dies_is_a_finding_and_so_is_one_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile_fuzz, "BYTES_MORE", 1 << 20)
    kept: list[bytes] = []
    assert found_in(lambda data: kept.append(bytes(1 << 20))).finding == "it took more than 1 GiB"
    script = tmp_path / "dies.py"
    script.write_text("import os, sys\nopen(sys.argv[3], 'wb').write(b'last')\nos.abort()\n")
    monkeypatch.setattr(hostile_fuzz, "__file__", str(script))
    found = in_child("x", 1.0, 1, tmp_path)
    assert "the process ended with -6" in found.finding and found.input == "bGFzdA=="


def test_what_is_mutated_repeats_by_its_seed() -> None:
    seeds = [b'{"a": [1, {"b": null}]}\n{"c": "d"}']
    mutators = [Mutator(random.Random(3), [b"word"], True, seeds) for _ in range(2)]
    made = [[mutator.make() for _ in range(50)] for mutator in mutators]
    assert made[0] == made[1] and len(set(made[0])) > 30
