"""The default campaign's random settings for tests of icestorm."""

from __future__ import annotations

from nodes.systems.reference.rules.draws import FLOW, PAGES
from stormproof.contracts.draw import Draw, Drawing

DRAWING = Drawing(
    draws=(
        *FLOW,
        PAGES,
        Draw("election_timeout", (0.3, 0.5, 2.0), 0.5),
        Draw("master_timeout", (0.3, 0.5, 2.0), 0.5),
        Draw("response_timeout", (0.2, 1.0), 0.4),
        # A dialogue waits for three retries, and must not be closed because of that.
        Draw("retry_interval", (0.05, 0.1), 0.2),
        Draw("delivery_timeout", (2.0,), 0.2),
        Draw("publisher_endpoints", ("one",), 0.2),
        Draw("acm_timeout", (1.0, 5.0), 0.2),
    ),
    nodes=(3, 3, 3, 4, 5, 5),
    timeouts=("election_timeout", "master_timeout", "response_timeout"),
)
