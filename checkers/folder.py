"""What lies in a run's folder, for those who need no more than that (and none of the checks' imports)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from harness.errors import HistoryError

HISTORY_FILE = "history.parquet"
LEDGER_FILE = "ledger.jsonl"
RUN_FILE = "run.json"

_PICTURE = re.compile(r"linearizability-(?:\d+|none)\.html", re.ASCII)


def picture_name(key: int) -> str:
    """The file that shows why the queue or object with this key (negative: none) is not linearizable."""
    return f"linearizability-{key if key >= 0 else 'none'}.html"


def is_picture(name: str) -> bool:
    """Whether a file's name is one that ``picture_name`` gives."""
    return _PICTURE.fullmatch(name) is not None


def pictures(run_dir: Path) -> list[str]:
    """The pictures in a run's folder, in the order of their keys."""
    found = [path.name for path in run_dir.glob("linearizability-*.html") if is_picture(path.name)]
    return sorted(found, key=lambda name: (len(name), name))


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
