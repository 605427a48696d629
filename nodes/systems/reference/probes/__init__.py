"""Read-only probes of the reference broker's programs, for the invariants, deadlines and counts of simulated runs.

A node's code does not know them and never carries them: the simulator attaches the probe to a program that exposes
itself (``Runtime.expose``).
"""

from __future__ import annotations

import importlib
from typing import cast

from stormproof.contracts.invariant import Watched

_DESIGNS, _SYSTEMS = "nodes.reference.designs", "nodes.systems.reference"
PROBES: dict[str, str] = {
    "nodes.reference.storage.service:StorageService": f"{_SYSTEMS}.probes.storage:StorageProbe",
    f"{_DESIGNS}.standalone:Standalone": f"{_SYSTEMS}.standalone.probes:StandaloneProbe",
    f"{_DESIGNS}.joram.design:JoramDesign": f"{_SYSTEMS}.joram.probes:JoramProbe",
    f"{_DESIGNS}.icestorm.design:IceStormDesign": f"{_SYSTEMS}.icestorm.probes:IceStormProbe",
    f"{_DESIGNS}.qpid.design:QpidDesign": f"{_SYSTEMS}.qpid.probes:QpidProbe",
    f"{_DESIGNS}.qpid.manager.manager:ClusterManager": f"{_SYSTEMS}.qpid.manager_probes:ManagerProbe",
    f"{_DESIGNS}.fiorano.design:FioranoDesign": f"{_SYSTEMS}.fiorano.probes:FioranoProbe",
    f"{_DESIGNS}.fiorano.gateway.service:LockGateway": f"{_SYSTEMS}.fiorano.probes:GatewayProbe",
}
"""``module:class`` of a program -> ``module:class`` of its probe, which is created from the program."""


def probe_of(program: object) -> Watched | None:
    """Return a probe of a program; None if the program has none."""
    kind = type(program)
    target = PROBES.get(f"{kind.__module__}:{kind.__qualname__}")
    if target is None:
        return None
    module, _, name = target.partition(":")
    return cast("Watched", getattr(importlib.import_module(module), name)(program))
