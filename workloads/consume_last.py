"""Workload ``consume-last``: publish while faults begin and end, consume when all is healed.

The tests of NATS JetStream work this way. There is no consumer while faults are active, so brokers alone lost the
messages that are missing in the end; no acknowledgement was involved. The positions of the missing messages (at the
beginning, in the middle, at the end of the confirmed ones) indicate how they were lost, which the check ``loss-shape``
reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stormproof.contracts.option import Option
from stormproof.generator import Generator, clients, on_threads, per_thread, rate, time_limit
from stormproof.test import Test
from workloads.draws import CONSUME_LAST as DRAWS
from workloads.queue import Enqueues, QueueWorkload

_CHANGED: Mapping[str, tuple[Any, str]] = {
    "producers": (4, "threads that send"),
    "consumers": (2, "threads that take, in the end"),
    "drain_limit": (120.0, "seconds that taking everything may take in all"),
}
"""Options of the queue workload -> (default, meaning in this workload)."""


def _changed(option: Option) -> Option:
    default, told = _CHANGED.get(option.name, (option.default, option.help))
    return replace(option, default=default, help=told)


class ConsumeLastWorkload(QueueWorkload):
    """Producers send with receipts at the test's rate; consumers take everything in the end, one at a time."""

    name = "consume-last"
    draws = DRAWS
    options = (*(_changed(option) for option in QueueWorkload.options),
               Option("publish_for", 0.0, "seconds for which there are sends, so that later faults find the brokers "
                                          "idle; 0: the whole time"))  # fmt: skip

    def main(self, test: Test) -> Generator:
        """Only send; the queues grow."""
        load = rate(test.rate, per_thread(lambda _: Enqueues(test.options["queues"])), test.rng("rate"))
        seconds = min(test.options["publish_for"] or test.time_limit, test.time_limit)
        return clients(on_threads(range(test.options["producers"]), time_limit(seconds, load)))
