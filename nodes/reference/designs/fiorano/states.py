"""The states of a server [States and state transition], by the document's names."""

WAITING = "WAITING"
"""Waits for the state of the other server, or for the lock; no clients."""
ACTIVE = "ACTIVE"
"""Serves clients; the other server has every change before it is confirmed."""
PASSIVE = "PASSIVE"
"""Standby: has everything, and monitors the other server."""
ACTIVE_TRANSITION = "ACTIVE_TRANSITION"
"""Serves clients, and synchronises with the standby server at the same time; the document also says ACTIVE SYNC."""
PASSIVE_TRANSITION = "PASSIVE_TRANSITION"
"""Being synchronised; the document also says PASSIVE SYNC."""
STANDALONE = "STANDALONE"
"""Serves clients while the other server is disconnected."""
DEAD = "DEAD"
"""Down, or not present in the network: a server's view of the other one without the channel."""
ACTIVATING = "ACTIVATING"
"""Shared mode: the server is becoming active, and synchronises with the database."""

REPLICATED_STATES = (WAITING, ACTIVE, PASSIVE, ACTIVE_TRANSITION, PASSIVE_TRANSITION, STANDALONE, DEAD)
SHARED_STATES = (ACTIVATING, ACTIVE, PASSIVE, DEAD)
SERVING = (ACTIVE, ACTIVE_TRANSITION, STANDALONE)
"""States of the replicated mode in which a server admits clients."""
