"""Read-only probes of links between brokers, and of the log feeding between replicas."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from nodes.reference.replication.links import Links
from nodes.reference.replication.replicator import CHUNK_WINDOW, Replicator

_NEARLY = 0.97
"""Share of a silence by which clocks and roundings may make it shorter."""


def silent_links(links: Links, silence: float) -> dict[str, Collection[Hashable]]:
    """Return the links that have to be cut when their peers are silent for that many seconds, each with the time when
    the peer was heard last; and a peer whose link was cut before."""
    found: dict[str, Collection[Hashable]] = {}
    if heard := links.last_heard():
        found["silent-link"] = heard
    if links.silent_cut[1] < _NEARLY * silence:
        found["link-cut-early"] = [links.silent_cut]
    return found


def miscounted(replicator: Replicator) -> str:
    """Describe a wrong counter of unacknowledged bytes, or a breach of the send window; empty if there is none."""
    peer, unacked, most = replicator.peer, replicator.unacked, replicator.most_unacked
    there, window = sum(size for _, size in replicator.in_flight), replicator.replica.options.send_window
    if most >= window:
        return f"{peer} was sent more when {most} bytes were under way, and {window} are enough"
    return "" if unacked == there else f"bytes under way to {peer}: {unacked} are counted, and there are {there}"


def lacks_chunks(replicator: Replicator) -> bool:
    """Return whether further chunks of a state could be sent to the peer now."""
    sent, acked = replicator.chunks_sent, replicator.chunks_acked
    return replicator.sends_state and not replicator.ended and sent < acked + CHUNK_WINDOW


def lacks_entries(replicator: Replicator, upto: int) -> bool:
    """Return whether entries, up to this index, could be sent to the peer now."""
    transfer, log = replicator.transfer, replicator.replica.log
    if transfer is not None and not replicator.ended and not transfer.sends_entries:
        return False
    return (replicator.next <= min(upto, log.last) and replicator.unacked < replicator.replica.options.send_window
            and log.epoch_at(replicator.next - 1) is not None)
