"""The third-party cluster managers: the requirements of each on its machines, and the cluster that it keeps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.designs.qpid.options import KEEPALIVED, PACEMAKER


@dataclass(frozen=True)
class Outside:
    """A third-party manager. ``program`` is what faults hit as the manager; ``packages`` are Debian's, ``capabilities``
    Linux's; ``place`` is ``module:class`` of the cluster."""

    program: str
    packages: tuple[str, ...]
    capabilities: tuple[str, ...]
    place: str

    def load(self) -> Any:
        """Return the class of the cluster."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


OUTSIDE: Mapping[str, Outside] = {
    # VRRP needs raw sockets; scripts are run as their intended user, including root.
    KEEPALIVED: Outside("keepalived", ("keepalived",), ("NET_RAW", "SETGID", "SETUID"),
                        "nodes.systems.reference.qpid.keepalived:KeepalivedCluster"),
    # Some of its programs run as another user, whose files and processes root must still be able to access.
    PACEMAKER: Outside("corosync", ("corosync", "pacemaker", "pacemaker-cli-utils", "resource-agents"),
                       ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_RAW", "SETGID", "SETUID"),
                       "nodes.systems.reference.qpid.pacemaker:PacemakerCluster"),
}
