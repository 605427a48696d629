"""Read-only probes of a broker's connections with other servers."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from nodes.reference.server.networks import WINDOW, Networks


def pending(networks: Networks) -> dict[str, Collection[Hashable]]:
    """Return the pending work on networks.

    It consists of the servers with waiting messages, each with its acknowledged sequence number; those of them that are
    not being called, with the number of calls; and connections with the times of their last output and input.
    """
    if not networks.opened:
        return {}
    waiting = [(server, peer.acked) for server in networks.wanted
               if (peer := networks.server_queues().peer(server)).sent > peer.acked]
    there = [(way, server, connection) for way, connections in (("to", networks.outward), ("of", networks.inward))
             for server, connection in connections.items()]
    found: dict[str, Collection[Hashable]] = {
        "forwarding": waiting,
        "network-call": [(server, calls) for server, calls in networks.calls.items()
                         if server not in networks.calling and networks.has_messages_for(server)],
        "network-beat": [(way, server, connection.wrote) for way, server, connection in there],
        "network-silent": [(way, server, connection.heard) for way, server, connection in there],
    }
    return {name: things for name, things in found.items() if things}


def miscounted(networks: Networks) -> str:
    """Describe a wrong counter of messages under way, or one beyond the window; empty if there is none."""
    for server, connection in networks.outward.items():
        there, sizes = sum(connection.sizes.values()), connection.sizes
        if there != connection.bytes:
            return f"bytes under way to server {server}: {connection.bytes} are counted, and there are {there}"
        if len(sizes) > WINDOW or any(not connection.acked < each <= connection.sent for each in sizes):
            return f"messages under way to server {server}: {list(sizes)[:3]}... count; it has {connection.acked}"
    return ""
