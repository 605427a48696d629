"""The table of the surface: what a run has used and judged, and what nobody uses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checkers.catalog import CHECKS
from harness.reference.feature_coverage import ITEMS, items_of, used_and_judged
from harness.run.cases import Case, JudgedRun
from harness.sim.tally import CampaignTally
from nodes.systems.catalog import SYSTEMS
from workloads.catalog import WORKLOADS

pytestmark = pytest.mark.requirement("H16", part=True)


def test_every_item_names_what_there_is() -> None:
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    docs = Path(__file__).parents[2] / "docs"
    for item in ITEMS:
        assert (docs / item.page.partition("#")[0]).is_file() and {*item.systems} <= {*SYSTEMS.names()}
        assert {*item.workloads} <= {*WORKLOADS.names()} and {*item.checks} <= {*CHECKS.names()}
        assert bool(item.workloads) == bool(item.checks), "used and not judged, or the other way round"


def info(workload: str, counts: dict[str, int], **options: Any) -> dict[str, Any]:
    return {"test": {"workload": workload, "options": options}, "surface": counts}


def test_used_is_not_yet_judged() -> None:
    run = info("queue", {"f:enqueue": 9, "body-empty": 2, "nack": 1})
    decided = {"lost": "valid", "duplicated": "unknown", "phantom": "valid", "content": "invalid"}
    assert used_and_judged(run, decided) == {"send": (9, False), "body-empty": (2, True), "nack": (1, True)}
    assert used_and_judged(run, {}) == {"send": (9, False), "body-empty": (2, False), "nack": (1, False)}
    assert used_and_judged(info("lock", {"f:enqueue": 9}), decided) == {}


def test_an_item_needs_its_settings() -> None:
    counts, decided = {"f:commit": 3}, dict.fromkeys(("atomic", "exactly-once", "tx-phantom", "prepared"), "valid")
    assert used_and_judged(info("transaction", counts, transactions="xa"), decided) == {"xa": (3, True)}
    assert used_and_judged(info("transaction", counts, transactions="plain"), decided) == {"transaction": (3, True)}


def test_a_campaign_says_what_it_has_not_judged() -> None:
    tally = CampaignTally(["qpid"], ["configuration", "dialogue"])
    names = [item.name for item in items_of(["qpid"], ["configuration", "dialogue"])]
    assert "qpid-objects" in names and "qpid-pages" in names and "window-of-one" in names and "xa" not in names
    case = Case("qpid", "configuration", "none", None, 1.0, 1.0)
    for judged in (False, True):
        used = {"qpid-objects": (4, judged)}
        tally.add(JudgedRun(case, 1, "valid", "", {}, (), {}, {}, "", 1.0, 1.0, "", surface=used))
        line = tally.surface.line()
        assert line.startswith(f"surface: {int(judged)} of {len(names)} items used and judged; not: ")
        assert "qpid-pages" in line and ("qpid-objects (used)" in line) is not judged
    assert tally.to_json()["surface"]["qpid-objects"] == {"runs": 2, "judged": 1, "times": 8}


def test_the_page_is_up_to_date() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    try:
        from generate_docs import FEATURE_COVERAGE, coverage_page
    finally:
        sys.path.pop(0)
    assert FEATURE_COVERAGE.read_text() == coverage_page(), "run `make docs`"
