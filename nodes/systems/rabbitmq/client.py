"""A client of queues on RabbitMQ, by STOMP.

(RabbitMQ's documentation 3.10: "STOMP Plugin"; "Quorum Queues", *Poison Message Handling*: ``x-delivery-count``.)
"""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.clients.stomp import CLASSIC, QUORUM, StompConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Depth
from stormproof.contracts.protocol_client import Access

USER = PASSWORD = "stormproof"
OURS = Credentials(USER, PASSWORD)


class RabbitQueues(StompConnection):
    """One client's connection to existing queues, or, with ``made_as``, to queues that are created by their first use.

    Args:
        depth: asks for a queue's depth.
        counted: the queues are quorum queues, which count deliveries.
        heartbeat: seconds between two heart-beats of the client; the broker drops a client after two missed ones.
        credentials: user and password.
        made_as: headers that define how queues are created ("STOMP Plugin", *User Generated Queue Names*).
    """

    prefetch = 1

    def __init__(self, depth: Depth, counted: bool, heartbeat: float, credentials: Credentials = OURS,
                 made_as: Mapping[str, str] | None = None) -> None:  # fmt: skip
        prefix, made = ("/amq/queue/", {}) if made_as is None else ("/queue/", made_as)
        super().__init__(Access(credentials), prefix=prefix, queue_type=QUORUM if counted else CLASSIC, creating=made,
                         sending={"persistent": "true"}, depth=depth, prefetch=self.prefetch,
                         heartbeat=heartbeat)  # fmt: skip
