"""The person who decides where neither server may use its repository, as the harness plays it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed

CASE = Case("fiorano", "queue", "disk,kill,partition", None, 28.0, 17.0, {
    "mode": "replicated", "disk_kind": "empty", "lease": "0.5", "min_ok": "3", "fault_lengths": "0.6,2,4",
    "fault_gap": "1.0"})  # fmt: skip


@pytest.mark.requirement("F5", part=True)
def test_a_person_accepts_a_repository_where_both_wait(tmp_path: Path) -> None:
    """One server's disk was emptied, and what the other has may not be all that was confirmed."""
    for seed in range(1, 13):
        result = run_seed(CASE, seed, tmp_path, tmp_path, ALL)
        assert result.verdict in ("valid", "unknown"), result.sentence
        assert result.run_dir is not None
        rows = [json.loads(line) for line in (result.run_dir / "ledger.jsonl").read_text().splitlines()]
        deeds = [row["text"] for row in rows if row["phase"] == "repair"]
        if deeds:
            assert all(deed.startswith("accepted the repository of") for deed in deeds), deeds
            assert "not healthy" not in result.sentence
            return
    raise AssertionError("nobody had to decide")
