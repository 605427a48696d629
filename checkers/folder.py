"""What lies in a run's folder, for those who need no more than that (and none of the checks' imports)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import HistoryError

HISTORY_FILE = "history.parquet"
LEDGER_FILE = "ledger.jsonl"
RUN_FILE = "run.json"


def read_info(run_dir: Path) -> dict[str, Any]:
    """A run's run.json.

    Raises:
        HistoryError: it is missing or no JSON object.
    """
    path = run_dir / RUN_FILE
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HistoryError(f"{path}: can't be read ({error}); is {run_dir} a run's folder?") from error
    if not isinstance(info, dict):
        raise HistoryError(f"{path}: not an object")
    return info
