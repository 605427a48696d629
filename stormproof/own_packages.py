"""A check that Stormproof's packages, which have common names, are not shadowed by others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from stormproof.errors import UsageError

PACKAGES = ("checkers", "harness", "nemesis", "nodes", "reports", "workloads")


def demand_own_packages() -> None:
    """Check that no foreign package with one of these names precedes Stormproof's on the path.

    Raises:
        UsageError: one does; the message names the file.
    """
    root = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise UsageError(f"Stormproof's package {name!r} is missing beside {root / 'stormproof'}: install it again")
        found = [spec.origin] if spec.origin else spec.submodule_search_locations or ()
        for place in map(Path, found):
            if not place.resolve().is_relative_to(root):
                raise UsageError(f"{place} stands before Stormproof's own package {name!r}: rename it, or start Python "
                                 "elsewhere; the command `stormproof` does not look into the folder it is started in")
