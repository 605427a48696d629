from __future__ import annotations

import sys
from pathlib import Path

# What makes run folders and finds free ports belongs to other tests.
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "checkers", "qpid")]
