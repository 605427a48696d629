"""The default campaign's random settings for tests of standalone."""

from __future__ import annotations

from nodes.systems.reference.rules.draws import FLOW, MEMORY, REMEMBERED
from stormproof.contracts.draw import Draw, Drawing, Never

DRAWING = Drawing(
    draws=(
        Draw("idle_timeout", (1.0, 2.0), 0.4), *REMEMBERED, *FLOW, *MEMORY,
        Draw("reliable", (False,), 0.2),  # the end of such a client's connection is work that comes during other work
    ),
    timeouts=("idle_timeout",),
    never=(
        Never("one broker has no link to another", faults=("partition",)),
        Never("who is killed in the middle of beginning its services anew needs a person",
              faults=("disk",), workloads=("processing",)),
    ),
)
