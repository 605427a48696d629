"""Exemptions: what a mode does not promise under faults, it still promises where no fault had a part."""

from __future__ import annotations

import numpy as np

from checkers.run import SECOND, Run
from stormproof.history.columns import Bools, Int64s

_DETECTIONS = 3.0
"""How many times ``detection_timeout`` a fault has a part after it began to be healed: until the replicas have noticed,
agreed, and gone over to another master."""
_BUSY = 5.0
"""Seconds more on real nodes, where undoing a fault takes its time, and a busy processor delays what follows."""


def near_fault(run: Run, since: Int64s, until: Int64s) -> Bools:
    """By stretch of rows: whether some fault may have had a part in what happened between its two rows.

    One that began before ``until`` and that was healed, and the failover after it over, no earlier than ``since``.
    """
    time = run.history.time
    begin, end = time[since], time[until]
    detection = float(run.test.get("options", {}).get("detection_timeout", 1.0))
    margin = int((_DETECTIONS * detection + (0.0 if run.in_process else _BUSY)) * SECOND)
    near = np.zeros(len(begin), dtype=np.bool_)
    for fault in run.faults:
        near |= (fault.start <= end) & (True if fault.end is None else begin <= fault.end + margin)
    return near
