"""Exemptions: a promise that a mode does not make under faults still holds for events that no fault affected."""

from __future__ import annotations

import numpy as np

from checkers.run import SECOND, Run
from stormproof.history.columns import Bools, Int64s

_DETECTIONS = 3.0
"""The time after the start of its heal for which a fault may still have an effect, in units of ``detection_timeout``.

In this time the replicas notice, agree, and switch to another master.
"""
_BUSY = 5.0
"""Additional seconds on real nodes, where undoing a fault takes time and a busy processor delays the rest."""


def near_fault(run: Run, since: Int64s, until: Int64s) -> Bools:
    """Return, by stretch of rows, whether some fault may have contributed to the events between its two rows.

    Such a fault began before ``until``, and its heal with the failover after it ended no earlier than ``since``.
    """
    time = run.history.time
    begin, end = time[since], time[until]
    detection = float(run.test.get("options", {}).get("detection_timeout", 1.0))
    margin = int((_DETECTIONS * detection + (0.0 if run.in_process else _BUSY)) * SECOND)
    near = np.zeros(len(begin), dtype=np.bool_)
    for fault in run.faults:
        near |= (fault.start <= end) & (True if fault.end is None else begin <= fault.end + margin)
    return near
