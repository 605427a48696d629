"""The default campaign's random settings for tests of fiorano."""

from __future__ import annotations

from nodes.systems.reference.rules.draws import FLOW, MEMORY, ONE_ASKS, REMEMBERED
from stormproof.contracts.draw import Draw, Drawing, Never

CLIENT_ORDER, PRIMARY_FIRST, NEAREST_FIRST = "client_order", "primary-first", "nearest-first"
"""The order in which clients try servers, which workloads declare. The document has clients connect to the primary
first when they initialise.
"""

DRAWING = Drawing(
    draws=(
        Draw(CLIENT_ORDER, (NEAREST_FIRST,), 0.6),
        Draw("mode", ("shared",), 0.4),
        Draw("lease", (0.5, 2.0), 0.5),
        Draw("heartbeat", (0.1, 0.5, 1.0), 0.4),
        Draw("idle_timeout", (1.0, 2.0), 0.4),
        Draw("page", (24, 400), 0.5),
        Draw("page_window", (4,), 0.5, {"page": 24}),
        *REMEMBERED,
        *FLOW,
        *MEMORY,
        Draw("database_page", (20, 100), 0.5, {"mode": "shared"}),
        Draw("database_timeout", (0.5, 2.0), 0.4, {"mode": "shared"}),
    ),
    nodes=(2,),
    timeouts=("lease", "heartbeat", "database_timeout"),
    never=(
        Never("a client that is not beside the active server does not go elsewhere, so what is there is never taken",
              {"connect": ("home",)}, ("consume-last", "offline-send", "queue")),
        ONE_ASKS,
        Never("the shape takes more nodes", {"partition_kind": ("majority-ring", "bridge", "random"), "nodes": (2,)}),
        Never("servers that share a database store nothing on their own disks",
              {"mode": ("shared",), "disk_target": ("one", "master", "backup")}, faults=("disk",)),
    ),
)
