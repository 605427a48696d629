"""The default campaign's random settings for tests of joram."""

from __future__ import annotations

from nodes.systems.reference.rules.draws import FLOW, MEMORY, ONE_ASKS, REMEMBERED
from stormproof.contracts.draw import Draw, Drawing, Never

DRAWING = Drawing(
    draws=(
        Draw("ack", ("majority",), 0.4),
        Draw("propagation", ("asynchronous",), 0.15),
        Draw("detection_timeout", (0.3, 0.5, 0.5, 2.0), 0.7),
        Draw("idle_timeout", (1.0, 2.0), 0.4),
        *REMEMBERED,
        *FLOW,
        *MEMORY,
        Draw("log_keep", (5, 5, 20, 100), 0.5),
        Draw("transfer_chunk", (24, 1000), 0.4),
        Draw("transfer", ("held-back",), 0.3),
        Draw("send_window", (200, 2000), 0.5),
        Draw("spares", (1, 2), 0.5),
        Draw("partitions", ("unspecified",), 0.3),
        Draw("disk_kind", ("empty", "empty", "lose-unsynced"), 0.4),
        Draw("points_at", ("joram.promised,joram.elected", "joram.regrouped,joram.truncated,joram.loaded",
                           "joram.promised,joram.viewed,joram.lease-ends"), 0.25),
    ),
    nodes=(2, 3, 3, 3, 4, 4, 5, 5),
    timeouts=("detection_timeout", "detection_timeout", "idle_timeout"),
    never=(
        Never("a group of two has no majority when one has lost its disk", {"nodes": (2,)}, faults=("disk",)),
        Never("a group of two has no majority when one has lost its disk", {"spares": (1, 2)}, faults=("disk",)),
        Never("servers of two replicas each have no majority when one has lost its disk", faults=("disk",),
              workloads=("clustered", "clustered-topic", "store-and-forward")),
        Never("an offline client forgets what has a receipt, which may come undone",
              {"propagation": ("asynchronous",)}, ("offline-send",)),
        Never("a client that finds nobody beside it does not go elsewhere, so what is there is never taken",
              {"connect": ("home",)},
              ("consume-last", "clustered", "queue", "offline-send", "store-and-forward", "processing")),
        ONE_ASKS,
        Never("what waits for offline clients takes seconds in pieces of 24 bytes", {"transfer_chunk": (24,)},
              ("offline-send",)),
        Never("both sides of a group that falls apart go on, by design", {"partitions": ("unspecified",)},
              faults=("partition", "pause", "packets", "clock", "points")),
        Never("the shape takes more nodes", {"partition_kind": ("majority-ring", "bridge", "random"), "nodes": (2,)}),
        Never("a client that does not reconnect loses what was confirmed early",
              {"propagation": ("asynchronous",), "reliable": (False,)}),
    ),
)
