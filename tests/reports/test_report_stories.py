"""What a page says of the operations of topics and of transactions."""

from __future__ import annotations

from typing import Any

import pytest

from reports.narrative import ShownOperation, narrate

pytestmark = pytest.mark.requirement("H10", part=True)


def done(f: str, key: int, kind: str = "ok", value: str = "0/1", **rest: Any) -> ShownOperation:
    given: dict[str, Any] = {"end": 2.0, "error": ""} | rest
    return ShownOperation(span=0, rows="1, 2", start=1.0, process=3, node="n1", type=kind, f=f, key=key, value=value,
                     faults=(), proof=True, **given)  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "sentence"),
    [
        (done("publish", 2), "1.000 s: published to topic 2 by process 3 through n1; the receipt came"),
        (done("receive", 4), "2.000 s: delivered to process 3 through n1 for subscription 4; the receipt of its"),
        (done("receive", 4, value="0/9"), "2.000 s: delivered message 0/9 to process 3 through n1 for subscription 4; "
                                          "the receipt of its ACK came."),
        (done("attach", 4, value="7"), "1.000 s: request for durable subscription 4 by process 3"),
        (done("commit", 0b101), "1.000 s: sent to queues 0 and 2 in one transaction by process 3 through n1;"),
        (done("commit", 0b11, "fail", error="not committed: late"), "; it had no effect (not committed: late)."),
        (done("abort", 0b111), "1.000 s: sent to queues 0, 1 and 2 in one transaction by process 3 through n1; it was "
                               "aborted, as intended."),
        (done("move", 3, "info", error="late"), "1.000 s: moved from queue 3 to queue 4 in one transaction by process "
                                                "3 through n1; no receipt came (late): it may or may not have been"),
        (done("recover", -1), "1.000 s: search for a prepared transaction, and commit by process 3"),
    ],
)  # fmt: skip
def test_sentences(operation: ShownOperation, sentence: str) -> None:
    (told, *_) = narrate([operation], True, "0/1")
    assert sentence in told
