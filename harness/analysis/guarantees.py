"""The guarantees by which a run is judged, as declared by its system."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.guarantee import KIND, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, guarantee_for
from stormproof.test import Test


def guarantees_of(test: Test, names: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the guarantees by which a run is judged, and the system's statement on each.

    A known violation is included: the document demands the guarantee, so the run must show that it is violated.
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
    """Return, for each guarantee, the kinds of anomalies whose absence the system does not promise for this run."""
    declared = SYSTEMS.load(test.system).guarantees
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(guarantee.name for guarantee in declared):
        whole, _, kind = name.partition(KIND)
        guarantee = guarantee_for(declared, name, test.options, test.nemesis)
        if kind and whole in names and guarantee is not None and guarantee.status == NOT_PROMISED:
            found.setdefault(whole, []).append(kind)
    return found
