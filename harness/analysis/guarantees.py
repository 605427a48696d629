"""Which guarantees a run is judged by, as its system declares them."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.guarantee import KIND, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, guarantee_for
from stormproof.test import Test


def guarantees_of(test: Test, names: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Which of the guarantees a run is judged by, and what its system says of each.

    A known violation counts: the document demands the guarantee, so the run is to show that it is violated.
    """
    declared = SYSTEMS.load(test.system).guarantees
    judged_by, statuses = [], {}
    for name in names:
        guarantee = guarantee_for(declared, name, test.options, test.nemesis)
        if guarantee is None or guarantee.status in (PROMISED, KNOWN_VIOLATION):
            judged_by.append(name)
        if guarantee is not None:
            statuses[name] = {"status": guarantee.status, "where": guarantee.where, "why": guarantee.why}
    return judged_by, statuses


def exemptions_of(test: Test, names: Sequence[str]) -> dict[str, list[str]]:
    """Of each guarantee, the kinds of anomalies that the system does not promise a run to be without."""
    declared = SYSTEMS.load(test.system).guarantees
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(guarantee.name for guarantee in declared):
        whole, _, kind = name.partition(KIND)
        guarantee = guarantee_for(declared, name, test.options, test.nemesis)
        if kind and whole in names and guarantee is not None and guarantee.status == NOT_PROMISED:
            found.setdefault(whole, []).append(kind)
    return found
