"""Read-only probes of the log feeding between replicas."""

from __future__ import annotations

from nodes.reference.replication.replicator import Replicator


def miscounted(replicator: Replicator) -> str:
    """Describe a wrong counter of unacknowledged bytes, or a breach of the send window; empty if there is none."""
    peer, unacked, most = replicator.peer, replicator.unacked, replicator.most_unacked
    there, window = sum(size for _, size in replicator.in_flight), replicator.replica.options.send_window
    if most >= window:
        return f"{peer} was sent more when {most} bytes were under way, and {window} are enough"
    return "" if unacked == there else f"bytes under way to {peer}: {unacked} are counted, and there are {there}"
