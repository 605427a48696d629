"""Loss from logs: an entry that was confirmed, or that a consumer read, is missing in the end."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.logs import Logs, examples, isin, same
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import LOGS


def check(run: Run) -> CheckOutcome:
    """Find values that the read of the whole log at the end lacks, though an append of them was confirmed
    (``confirmed-lost``) or a consumer polled them (``seen-lost``).

    Only operations that ended before that read began count, and only logs whose end the read found, or that are gone as
    a whole (``Logs.gone``). Any other log makes a run without losses *unknown*.
    """
    logs = Logs(run)
    h = run.history
    calls = logs.rows(vocabulary.INVOKE, "scan")
    known = np.unique(logs.key(np.concatenate([logs.appended, logs.polled])))
    gone = logs.gone(int(run.test.get("options", {}).get("logs", 1)))
    whole = np.union1d(np.unique(logs.key(logs.ends("scan"))), gone)
    begun = {int(key): int(calls[h.key[calls] == key][0]) for key in whole}
    there = _names(logs, logs.scanned)

    def missing(rows: Int64s) -> Int64s:
        asked = np.asarray([begun.get(key, -1) for key in logs.key(rows).tolist()], dtype=np.int64) > rows
        absent = rows[asked & ~isin(_names(logs, rows), there)]
        _, first = np.unique(_names(logs, absent), return_index=True)
        found: Int64s = absent[np.sort(first)]
        return found

    lost = missing(logs.appended)
    seen = missing(logs.polled)
    seen = seen[~isin(_names(logs, seen), _names(logs, lost))]
    unread = [int(key) for key in known if key not in whole]
    figures: dict[str, object] = {"confirmed": len(logs.appended), "lost": len(lost), "seen-lost": len(seen)}
    count = len(lost) + len(seen)
    if count:
        found = (*examples(run, "confirmed-lost", [(row,) for row in lost.tolist()], logs),
                 *examples(run, "seen-lost", [(row,) for row in seen.tolist()], logs))  # fmt: skip
        text = (f"{len(lost):,} of {amount(len(logs.appended), 'confirmed append')} lost, "
                f"and {len(seen):,} others that were read")  # fmt: skip
        if len(gone):
            figures["gone"] = gone
            text += f"; {amount(len(gone), 'log no longer exists', 'logs no longer exist')}, by every answer"
        return CheckOutcome(INVALID, count, text, found[:MAX_EXAMPLES], figures)
    if unread:
        return CheckOutcome(UNKNOWN, 0, f"log {unread[0]} was not read to its end", (), figures)
    return CheckOutcome(VALID, 0, f"none of {amount(len(logs.appended), 'confirmed append')} was lost", (), figures)


def _names(logs: Logs, rows: Int64s) -> Int64s:
    return same((logs.key(rows), logs.value(rows)))


CHECK = RunCheck(
    name="log-lost",
    guarantee="every confirmed or read entry stays in the log",
    anomaly="log-lost",
    decides=True,
    subjects=(LOGS,),
    one="entry of a log was lost",
    more="entries of logs were lost",
    function=check,
)
