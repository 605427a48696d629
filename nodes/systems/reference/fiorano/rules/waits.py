"""The waits of a FioranoMQ server, of the gateway, and of the shared database's service."""

from __future__ import annotations

from nodes.systems.reference.fiorano.probes import GATEWAY
from nodes.systems.reference.probes.storage import STORAGE
from nodes.systems.reference.rules import waits
from stormproof.contracts.wait import Instant, Wait

_PAGE = "docs/designs/fiorano.md: "
_CHANNEL = _PAGE + "heartbeat; the channel counts as broken when four are missing"
_LEASE = _PAGE + "lease, seconds for which the lock is held after its holder last sent a request for it"
_GREETING = "whoever calls has {} to prove that it is one of the servers"

WAITS = (
    Wait("beat-timer", "FioranoDesign._tick_forever", {"heartbeat": 1}, 0.0,
         _PAGE + "heartbeat, seconds between heartbeats on the HA channel",
         "a sign of life follows the last one after {}"),
    *waits.of_links({"heartbeat": 4}, {"heartbeat": 0.5}, _CHANNEL),
    Wait("gateway-dial-timer", "GatewayLock._talk_forever", {"lease": 1}, 0.0, _LEASE,
         "a call to the gateway is given up after {}"),
    Wait("gateway-redial-timer", "GatewayLock._talk_forever", {"lease": 0.2}, 0.0, _LEASE,
         "a gateway that was away is called again after {}"),
    Wait("renewal-timer", "GatewayLock._talk", {"lease": 0.2}, 0.0,
         "lock.py: the lock is asked for, or renewed, in every fifth of a lease", "the lock is renewed after {}"),
    Wait("gateway-answer-timer", "GatewayLock._talk", {"lease": 1}, 0.0, _LEASE,
         "a server waits {} for the gateway's answer"),
    Wait("database-timer", "StorageClient._answered", {"database_timeout": 1}, 0.0,
         _PAGE + "database_timeout, seconds after which the shared database counts as unreachable",
         "a server waits {} for the shared database", where={"mode": ("shared",)}),
    Wait("database-look-timer", "SharedPair._look_forever", {"lease": 0.25}, 0.0,
         "shared.py: whether the database is there is asked four times in a lease",
         "a server asks after {} again whether the shared database is there", where={"mode": ("shared",)}),
    Wait("file-timer", "LockGateway.run", {"lease": 0.2}, 0.0,
         _PAGE + "the gateway detects a deleted or changed lock file within a fifth of a lease",
         "the gateway looks at its lock file again after {}", of=GATEWAY),
    Wait("gateway-greeting-timer", "LockGateway._serve", {}, 2.0, "gateway/service.py", _GREETING, of=GATEWAY),
    Wait("database-greeting-timer", "StorageService._serve", {}, 2.0, "storage/service.py", _GREETING, of=STORAGE),
    Instant("lease-until", "_design.server.lock.until", {"lease": 1}, 0.0, _LEASE,
            "a server holds the lock for {}", 0.0, where={"lock": (True,)}),
    Instant("held-until", "_gateway.grants.holder_until", {"lease": 1.25}, 0.0,
            "gateway/grants.py: a lease and a quarter, by any clock", "nobody else is granted the lock for {}",
            of=GATEWAY),
    Instant("released-until", "_gateway.grants.holder_until", {}, 0.0, _PAGE + "a lock that is released is free",
            "a lock is free {} after its holder has released it", of=GATEWAY),
    *waits.WAITS,
    *waits.CONNECTIONS,
)  # fmt: skip
