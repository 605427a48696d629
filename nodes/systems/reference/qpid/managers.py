"""The cluster managers that are not ours: what each needs of its machines, and the cluster that it keeps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.designs.qpid.options import KEEPALIVED, PACEMAKER


@dataclass(frozen=True)
class Outside:
    """``program`` is what faults hit as the manager; ``packages`` are Debian's, ``capabilities`` Linux's; ``place`` is
    ``module:class`` of the cluster."""

    program: str
    packages: tuple[str, ...]
    capabilities: tuple[str, ...]
    place: str

    def load(self) -> Any:
        """The class of the cluster."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


OUTSIDE: Mapping[str, Outside] = {
    # VRRP has sockets of its own kind; scripts are run as the user that they are meant for, root included.
    KEEPALIVED: Outside("keepalived", ("keepalived",), ("NET_RAW", "SETGID", "SETUID"),
                        "nodes.systems.reference.qpid.keepalived:KeepalivedCluster"),
    # Some of its programs run as another user, whose files and processes root has to reach all the same.
    PACEMAKER: Outside("corosync", ("corosync", "pacemaker", "pacemaker-cli-utils", "resource-agents"),
                       ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_RAW", "SETGID", "SETUID"),
                       "nodes.systems.reference.qpid.pacemaker:PacemakerCluster"),
}
