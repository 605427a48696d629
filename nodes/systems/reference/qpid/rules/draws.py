"""The default campaign's random settings for tests of qpid."""

from __future__ import annotations

from nodes.systems.reference.rules.draws import FLOW, MEMORY, ONE_ASKS, PAGES
from stormproof.contracts.draw import Draw, Drawing, Never

_BY_NAME = "*=messages,*=none"
"""Everything is replicated, by its name alone; the first pattern that matches applies."""

DRAWING = Drawing(
    draws=(
        *FLOW,
        *MEMORY,
        PAGES,
        Draw("detection_timeout", (0.5, 0.5, 2.0), 0.6),
        Draw("manager_lease", (0.5, 2.0), 0.5),
        Draw("catchup_timeout", (0.1, 0.3, 1.0, 2.0), 0.6),
        Draw("eviction_timeout", (2.0, 3.0), 0.7),
        Draw("catchup_chunk", (100, 2000), 0.4),
        Draw("sequence_bits", (4, 8), 0.2),
        Draw("broker_network", ("own",), 0.4),
        Draw("crash_kind", ("shutdown",), 0.4),
        Draw("person", ("copies",), 0.5),
        Draw("store_errors", ("carry-on",), 0.3),
        Draw("patterns", (_BY_NAME,), 0.2),
        Draw("replicate", ("none",), 1.0, {"patterns": _BY_NAME}),
        Draw("virtual_address", ("auto",), 0.25),
        Draw("clients_find", ("both",), 1.0, {"virtual_address": "auto"}),
        Draw("membership_kind", ("remove",), 1.0),
    ),
    nodes=(3, 3, 3, 4, 5),
    timeouts=("detection_timeout", "manager_lease", "catchup_timeout"),
    never=(
        Never("hardly a client would be beside the primary", {"connect": ("home",)},
              ("consume-last", "offline-send", "queue")),
        ONE_ASKS,
    ),
)
