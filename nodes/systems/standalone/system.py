"""One reference broker, which nobody replicates."""

from __future__ import annotations

from nodes.systems.reference.system import BUG, MESSAGING, ReferenceSystem
from nodes.systems.standalone.guarantees import GUARANTEES
from stormproof.contracts.option import Option

STANDALONE = ReferenceSystem(
    "standalone",
    replicated=False,
    max_nodes=1,
    provides=MESSAGING | {"security"},
    guarantees=GUARANTEES,
    options=(
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        BUG,
    ),
)
