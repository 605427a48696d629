"""Runs that an earlier version packed are unpacked, judged and shown as they were then.

When something stored changes, add a run of today's version to the folder ``stores``; none is ever made anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.run_check import check_run
from reports.run_page import write_report
from stormproof.packing import unpack
from stormproof.run_folder import RUN_SCHEMA, SEALED_SINCE, read_verdict, written_by
from stormproof.store import Store

STORES = sorted((Path(__file__).parent / "stores").glob("*.zip"))


@pytest.mark.requirement("H29")
@pytest.mark.parametrize("path", STORES, ids=[path.stem for path in STORES])
def test_a_run_of_an_earlier_version_is_judged_as_it_was(path: Path, tmp_path: Path) -> None:
    run_dir = unpack(path, Store(tmp_path))
    then = read_verdict(run_dir)
    now = check_run(run_dir).to_json()
    assert now["verdict"] == then["verdict"]
    unsealed = ", description unsealed" if written_by(run_dir) in range(1, SEALED_SINCE) else ""
    assert now["sentence"] == f"{then['sentence'].removesuffix('.')}{unsealed}."
    (run_dir / "report.html").unlink()
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert then["sentence"].partition(": ")[2][1:] in page
    assert "can't be read" not in page


def test_there_is_a_run_of_todays_schema(tmp_path: Path) -> None:
    schemas = {written_by(unpack(path, Store(tmp_path / path.stem))) for path in STORES}
    assert RUN_SCHEMA in schemas
