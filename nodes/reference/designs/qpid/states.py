"""The states of a broker [Broker discovery and lifecycle]."""

CONNECTING = "connecting"
"""A backup that tries to reach the primary, cycling through the broker URL."""
CATCHUP = "catchup"
"""A backup that is connected to the primary and copies the content that existed before."""
READY = "ready"
"""A backup that has everything, and may take over as primary."""
PRIMARY = "primary"
"""Serves clients."""
STOPPED = "stopped"
"""Part of a cluster that has been shut down in order; its store is clean."""

STATES = (CONNECTING, CATCHUP, READY, PRIMARY, STOPPED)
