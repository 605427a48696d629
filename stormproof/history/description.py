"""Whether a run's description is what was sealed; needs neither pandas nor more of a history than its footer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stormproof.errors import HistoryError
from stormproof.history.read_limits import FOOTER_LIMITS
from stormproof.run_folder import HISTORY, RUN_FILE, RUNNING, SEALED_SINCE, demand_seal

DESCRIBED_BY = "stormproof.run-schema"
"""The format of the description beside the history: who takes its seal away can't say that it never had one."""


def demand_sealed(run_dir: Path, info: Mapping[str, Any]) -> bool:
    """Whether a run's description (as ``read_run`` gives it) is sealed; an older format knew no seal.

    Raises:
        HistoryError: it does not fit its seal, or has lost it.
    """
    path = run_dir / RUN_FILE
    if demand_seal(path, info):
        return True
    if info.get("status") != RUNNING and _run_schema(run_dir / HISTORY) >= SEALED_SINCE:
        raise HistoryError(f"{path} has lost its seal: the history beside it was sealed with one")
    return False


def _run_schema(history: Path) -> int:
    """The format of the run's description by its history; 0 where that does not tell."""
    if not history.is_file():
        return 0
    try:
        found = pq.ParquetFile(history, **FOOTER_LIMITS).metadata.metadata or {}
        return int(found.get(DESCRIBED_BY.encode(), b"0"))
    except (OSError, ValueError, pa.ArrowException):
        return 0  # whoever reads the history says what is wrong with it
