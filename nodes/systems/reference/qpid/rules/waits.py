"""The waits of a Qpid broker and of its manager."""

from __future__ import annotations

from nodes.reference.designs.qpid.options import BUILTIN
from nodes.systems.reference.qpid.manager_probes import MANAGER
from nodes.systems.reference.rules import waits
from stormproof.contracts.wait import Instant, Wait

_LEASE = "docs/designs/qpid.md: manager_lease"
_LINKS = "docs/designs/qpid.md: detection_timeout; links.py: dialled again in every eighth of it"
_MANAGERS = "docs/designs/qpid.md: all managers exchange heartbeats, five in a manager_lease"
_ASKS = "docs/designs/qpid.md: a broker asks its manager four times in a lease for permission to continue"
_CANDIDATES = "coordinator.py: candidates wait for votes for a lease, and stand at random within half of one"
_MANAGED = {"manager": (BUILTIN,)}

WAITS = (
    Wait("beat-timer", "QpidDesign._tick_forever", {"detection_timeout": 0.25}, 0.0,
         "docs/designs/qpid.md: detection_timeout; brokers speak in every quarter of it",
         "a broker speaks to its peers, and looks for silent ones, after {}"),
    Wait("permission-timer", "ManagerPermission._ask", {"manager_lease": 0.25}, 0.0, _ASKS,
         "a broker asks again whether it may go on after {}"),
    Wait("note-timer", "ManagerPermission._ask", {"manager_lease": 1 / 16}, 0.0,
         "lease_client.py: four times as often while a note is not recorded",
         "a broker asks again whether its note is recorded after {}"),
    Wait("permission-answer-timer", "ManagerPermission._ask", {"manager_lease": 2}, 0.0, _LEASE,
         "a broker waits {} for its manager's answer"),
    Wait("permission-dial-timer", "ManagerPermission._ask_forever", {"manager_lease": 2}, 0.0, _LEASE,
         "a call to the manager is given up after {}"),
    Wait("permission-redial-timer", "ManagerPermission._ask_forever", {"manager_lease": 1 / 8}, 0.0, _LEASE,
         "a broker calls its manager again after {}"),
    Instant("patience-until", "_design.permission._patience", {"manager_lease": 2}, 0.0, _LEASE,
            "a new primary waits {} for its manager's permission", where=_MANAGED),
    Instant("first-patience-until", "_design.permission._patience", {"manager_lease": 5}, 0.0, _LEASE,
            "a broker that starts waits {} for its manager's permission", where=_MANAGED),
    Instant("permission-until", "_design.permission.until", {"manager_lease": 1}, 0.0, _LEASE,
            "a broker may go on for {}", 0.0, where=_MANAGED),
    *waits.of_links({"detection_timeout": 1}, {"detection_timeout": 1 / 8}, _LINKS),
    Wait("heartbeat-timer", "ClusterManager.run", {"manager_lease": 0.2}, 0.0, _MANAGERS,
         "a manager sends its heartbeat after {}", of=MANAGER),
    Wait("address-timer", "ClusterManager._keep", {"manager_lease": 0.1}, 0.0,
         "docs/designs/qpid.md: the address's lifetime is renewed by each lease, and it goes when the lease ends",
         "a manager looks after the virtual address after {}", 0.0, of=MANAGER),
    Wait("process-timer", "BrokerSupervisor.supervise", {"manager_lease": 0.1}, 0.0,
         "services.py: the broker's process is looked at twice in a heartbeat",
         "a manager looks at its broker's process after {}", of=MANAGER),
    Wait("poll-timer", "BrokerSupervisor.converse", {"manager_lease": 0.2}, 0.0,
         "services.py: a broker is asked how it is in each heartbeat",
         "a manager asks its broker how it is after {}", of=MANAGER),
    Wait("status-timer", "Control.ask", {"manager_lease": 1}, 0.0,
         "services.py: a broker is given a lease to say how it is", "a broker has {} to say how it is", of=MANAGER),
    Wait("promotion-timer", "Control.ask", {"manager_lease": 10}, 30.0,
         "docs/designs/qpid.md: a long store takes time to read", "a broker has {} to become primary", of=MANAGER),
    Wait("permission-greeting-timer", "LeaseServer._serve", {}, 2.0, "lease_server.py",
         "whoever calls a manager's lease server has {} to prove that it is its broker", of=MANAGER),
    Instant("stands-at", "_manager.coordinator.stand_at", {"manager_lease": 0.5}, 0.0, _CANDIDATES,
            "a manager that hears no coordinator stands after {}", 0.0, of=MANAGER),
    Instant("candidacy-until", "_manager.coordinator.deadline", {"manager_lease": 1}, 0.0, _CANDIDATES,
            "a candidate waits {} for the votes of the others", of=MANAGER),
    Instant("starts-at", "_manager.services._start_at", {}, 1.0, "services.py: a broker that ends at once is not "
            "started all the time", "a broker is started again after {}", of=MANAGER),
    *waits.of_links({"manager_lease": 1}, {"manager_lease": 0.2}, _MANAGERS, MANAGER),
    *waits.WAITS,
)  # fmt: skip
