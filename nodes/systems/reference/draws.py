"""What the default campaign draws of settings that several designs of the reference broker have."""

from __future__ import annotations

from stormproof.contracts.draw import Draw

REMEMBERED = (Draw("max_closed", (10, 20), 0.4), Draw("max_outcomes", (40,), 0.4))
"""So little that a run has more."""
