"""Pages that show why a queue is not linearizable: the operations that prove it among their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import porcupine
from porcupine.columns import ENQUEUE, NEVER

from checkers.queue_columns import QueueColumns
from checkers.run import SECOND, Run
from stormproof import vocabulary
from stormproof.history.columns import Int64s
from stormproof.history.ledger import FaultWindow

CONTEXT = 60
"""The number of messages shown in addition to those of the proof: the nearest in time."""
SECONDS = 5.0
"""Time limit of the search for the smallest proof, in seconds."""


class Moment(int):
    """A row of a history that is printed as its time: rows have an order even if their times are equal."""

    seconds: float

    @classmethod
    def of(cls, run: Run, row: int) -> Moment:
        """Return the moment of a row."""
        moment = cls(row)
        moment.seconds = float(run.history.time[row]) / SECOND
        return moment

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s, row {int(self)}"


class Label(str):
    """A message's name, printed without quotes."""

    def __repr__(self) -> str:
        return str(self)


def picture(run: Run, model_name: str, columns: QueueColumns, proof: Sequence[int]) -> str:
    """Return the page of one queue; ``proof`` are the places in ``columns`` that prove that it is not linearizable."""
    model = porcupine.model_named(model_name)
    wrong = np.unique(columns.value[list(proof)])
    values = np.concatenate((wrong, nearest(columns, proof, wrong)))
    places = np.flatnonzero(np.isin(columns.value, values))
    places = places[np.argsort(columns.call[places])]
    operations = [_operation(run, columns, int(place)) for place in places]
    operations += _unconfirmed(run, values)
    members = np.flatnonzero(np.isin(columns.value[places], wrong)).tolist()
    result = porcupine.check_operations_verbose(model, operations, timeout=SECONDS)
    minimal = porcupine.minimal_history(model, operations, timeout=SECONDS, members=members)
    key = int(columns.key[places[0]])
    return porcupine.html(
        model,
        operations,
        result,
        title=f"Run {run.name}, queue {key}: {len(operations)} of its operations, those that prove it among them",
        annotations=[_band(run, fault) for fault in run.faults],
        minimal=minimal.operations,
    )


def nearest(columns: QueueColumns, proof: Sequence[int], wrong: Int64s) -> Int64s:
    """Return values, nearest in time to the proof, whose operations are in order: put in once and before it is taken,
    taken at most once.
    """
    top = int(columns.value.max()) + 1
    put = columns.f == ENQUEUE
    began = np.full(top, -1, dtype=np.int64)
    began[columns.value[put]] = columns.call[put]
    takes = np.bincount(columns.value[~put], minlength=top)
    early = np.zeros(top, dtype=np.bool_)
    early[columns.value[~put]] = columns.ret[~put] < began[columns.value[~put]]
    sound = (began >= 0) & (takes <= 1) & ~early
    sound[wrong] = False
    moments = np.concatenate((columns.call[list(proof)], columns.ret[list(proof)]))
    distance = np.full(top, np.iinfo(np.int64).max, dtype=np.int64)
    for moment in moments[moments != NEVER]:
        np.minimum.at(distance, columns.value, np.abs(columns.call - moment))
    candidates = np.flatnonzero(sound)
    chosen: Int64s = candidates[np.argsort(distance[candidates], kind="stable")[:CONTEXT]]
    return chosen


def _operation(run: Run, columns: QueueColumns, place: int) -> porcupine.Operation:
    call, ret = int(columns.call[place]), int(columns.ret[place])
    name = _name(run, int(columns.value[place]))
    put = columns.f[place] == ENQUEUE
    until = None if ret == NEVER else Moment.of(run, ret)
    return porcupine.Operation(
        client_id=int(run.history.process[call]),
        input=("enqueue", name) if put else ("dequeue",),
        output=None if put else name,
        call=Moment.of(run, call),
        ret=until,
    )


def _unconfirmed(run: Run, values: Int64s) -> list[porcupine.Operation]:
    """Return deliveries of these messages whose ACK is unknown: in the model, operations that never returned."""
    h, messages = run.history, run.messages
    found = []
    for message in (values[values <= len(messages.key)] - 1).tolist():
        for row in messages.delivered[messages.start[message] : messages.start[message + 1]].tolist():
            if h.kind[row] == vocabulary.INFO:
                call = int(h.partner[row])
                found.append(
                    porcupine.Operation(int(h.process[call]), ("dequeue",), None, Moment.of(run, call), None)
                )
    return found


def _name(run: Run, value: int) -> str:
    return Label(run.messages.name(value - 1) if value <= len(run.messages.key) else f"not ours ({value})")


def _band(run: Run, fault: FaultWindow) -> porcupine.Annotation:
    """Return a fault's window in rows."""
    time = run.history.time
    start = int(np.searchsorted(time, fault.start))
    end = None if fault.end is None else int(np.searchsorted(time, fault.end, side="right"))
    return porcupine.Annotation(start, end, f"{fault.fault} {fault.kind} #{fault.id}")
