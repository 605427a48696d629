"""The default campaign's random values of settings that several designs of the reference broker have."""

from __future__ import annotations

from stormproof.contracts.draw import Draw, Never

REMEMBERED = (Draw("max_closed", (10, 20), 0.4), Draw("max_outcomes", (20, 40), 0.4))
"""Values so low that a run exceeds them."""
FLOW = (
    Draw("max_under_way", (2,), 0.2),
    Draw("max_bytes_under_way", (5_000,), 0.2),
    Draw("max_outstanding", (1, 3), 0.2),
    Draw("output_timeout", (0.5, 1.0), 0.3),
)
"""Values so low that clients wait for each other."""
MEMORY = (Draw("message_cache", (1, 300), 0.3),)
"""A value so low that messages are read from disk again."""
PAGES = Draw("answer_page", (60, 400), 0.3)
"""A value so low that lists are split into several pages."""
ONE_ASKS = Never(
    "one client asks for the lock at the end, and may have nobody beside it who serves",
    {"connect": ("home",)}, ("lock", "lease"),
)
"""An exclusion of designs in which one node serves."""
