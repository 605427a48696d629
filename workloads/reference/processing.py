"""Workload ``processing``: a client inside the broker consumes, computes and produces (HA Joram, 1.2).

Producers send to ``in.K``; the broker's collocated client number K takes messages from there and sends its outputs to
``out.K``, from where consumers take. In the history this is one queue K, and its messages are the originals: an output
names the message that it was computed from. The promises depend on the quality of service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nodes.reference.engine.threads import PREFIX
from nodes.reference.server.reaction import AT_MOST_ONCE, EXACTLY_ONCE, OUTPUT, PUSHED, QUALITIES, TAKING, compute
from nodes.stomp import Frame
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands, Reaction
from stormproof.operation import Op
from workloads.draws import PROCESSING as DRAWS
from workloads.feature_coverage import FEATURE_COVERAGE
from workloads.messages import decode_body
from workloads.queue import QueueWorkload
from workloads.reference.queue_client import QueueClient
from workloads.reference.stomp_client import StompCluster, SubCluster, acknowledge

SAME_COPY = "same copy"
"""The mark in the error of a completion whose copy had already been delivered before."""

_EMPTY_SECONDS = 1.0
"""The time for which polls must find everything empty: a reaction may have taken its message and not yet sent."""


class Outputs:
    """The copies of messages that have been output so far; all consumers share it."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def came_before(self, message: Frame) -> bool:
        """Return whether this is a redelivery; a copy from another reaction, or one that the broker has duplicated, is
        not."""
        copy = message.headers.get("message-id", ""), message.headers.get(OUTPUT, "")
        if copy in self._known:
            return True
        self._known.add(copy)
        return False


def origin_of(body: bytes) -> Any:
    """Return the message that an output was computed from; the text of a body that no reaction computes."""
    original = body.partition(b" ")[0]
    return decode_body(original if compute(original) == body else body[:100] + b"?")


class ReactionView(SubCluster):
    """A view of the cluster in which a reaction's waiting inputs and outputs count as one queue."""

    async def depths(self) -> dict[str, int] | None:
        """Return, by number of the collocated client, the number of its waiting inputs and of its outputs."""
        depths = await self.cluster.depths()
        if depths is None:
            return None
        numbers = range(int(self.test.options["queues"]))
        return {f"q{number}": depths.get(_waiting(self.test.options, number), 0) + depths.get(f"out.{number}", 0)
                for number in numbers}


def _waiting(options: Mapping[str, Any], number: int) -> str:
    """Return the name under which the broker counts the inputs that wait for a collocated client."""
    return f"in.{number}" if options["source"] == "queue" else f"durable:{PREFIX}r{number}:r{number}"


class ProcessingClient(QueueClient):
    """A producer for ``in.K``, or a consumer of ``out.K``."""

    def __init__(self, cluster: StompCluster, host: str, first: int, outputs: Outputs) -> None:
        super().__init__(ReactionView(cluster, cluster.node_names), host, first)
        self._outputs = outputs

    def target(self, key: int) -> str:
        """Return the destination that the collocated client number ``key`` takes its messages from."""
        return f"/{self.options['source']}/in.{key}"

    def source(self, key: int) -> str:
        """Return the destination of its outputs."""
        return f"/queue/out.{key}"

    async def acknowledge(self, op: Op, message: Frame, waited: str) -> Op:
        """Acknowledge an output; the operation's value is the message that it was computed from."""
        again = self._outputs.came_before(message)
        done = await acknowledge(self, op, message, waited, origin_of)
        return done._replace(error=f"{done.error}, {SAME_COPY}" if done.error else SAME_COPY) if again else done

    async def await_drained(self, key: int) -> Frame | None:
        """Return the next output; None when none is left, and none was in progress for some time."""
        patience = _EMPTY_SECONDS if self.options["quality"] == AT_MOST_ONCE else 0.0
        for _ in range(max(1, math.ceil(patience / float(self.options["poll"])))):
            if message := await super().await_drained(key):
                return message
        return None


class ProcessingWorkload(QueueWorkload):
    """The queue workload with a client inside the broker between producers and consumers."""

    name = "processing"
    needs = ("queues", "processing")
    draws = DRAWS
    drawn = 2
    options = (
        Option("quality", EXACTLY_ONCE, "when the client inside the broker acknowledges: before it reacts, after, or "
               "in the same transaction (XA)", QUALITIES),
        Option("source", "queue", "source of its messages: a queue, or a topic by a durable subscription",
               ("queue", "topic")),
        Option("taking", PUSHED, "delivery of its messages: pushed, some ahead of its acknowledgements; or pulled, "
               "one at a time", TAKING),
        # The reaction creates its own messages.
        *(option for option in QueueWorkload.options if option is not FEATURE_COVERAGE),
    )

    guarantees = ("lost", "phantom", "duplicated", "at-most-once", "depth")

    def __init__(self) -> None:
        self._outputs = Outputs()

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand a client inside the broker for each input queue."""
        reactions = tuple(
            Reaction(f"r{number}", options["quality"], f"/{options['source']}/in.{number}", f"/queue/out.{number}",
                     options["taking"])
            for number in range(options["queues"])
        )
        return Demands(queues=tuple(f"out.{number}" for number in range(options["queues"])), reactions=reactions)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        return ProcessingClient(cluster, host, thread, self._outputs)
