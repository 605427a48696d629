"""The options of the design ``joram``, checked."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.reference.api import Config, ConfigError
from nodes.reference.designs.joram.decisions import MAX_MEMBERS
from nodes.reference.option_values import choice, flag, seconds, whole
from nodes.reference.replication.transfer import CHUNK_BYTES, TRANSFERS

ACKS = ("all", "majority")
SEND_WINDOW = 8 << 20
PARTITIONS = ("primary-partition", "unspecified")
PROPAGATIONS = ("synchronous", "asynchronous")


@dataclass(frozen=True)
class JoramOptions:
    """The options that define how a group of replicas works together. Times are in seconds.

    ``ack``: the acknowledgements that a command needs before it takes effect: from every member of the current view, or
    from a majority. ``propagation``: whether a sent message is confirmed then, or as soon as the master has it; in the
    latter case the other replicas are brought up to date every ``sync_interval``. ``partitions``: the behaviour when
    the group is partitioned (``decisions``). ``nb_cluster_expected``: the number of replicas that must have joined
    before the group starts; ``restart_expected``: the same for a restart after a stop of all, which is that number if
    it was given, else 0. ``detection_timeout``: the silence after which a peer is suspected. ``log_keep`` and
    ``log_keep_bytes``: the size of the log that is kept for returning replicas. One that lags further gets the whole
    state, in one of the forms of ``transfer``, in pieces of about ``transfer_chunk`` bytes; a replica has to keep at
    most ``max_state`` bytes of it in the meantime. ``join``: this replica is added to a running group, and waits until
    that accepts it. ``send_window``: bytes of entries that a replica may be sent before it has acknowledged them.
    ``secret``: the secret that replicas must share for a link; empty for none.
    """

    ack: str = "all"
    propagation: str = "synchronous"
    sync_interval: float = 0.05
    partitions: str = "primary-partition"
    nb_cluster_expected: int = 1
    restart_expected: int = 0
    detection_timeout: float = 1.0
    heartbeat_interval: float = 0.2
    log_keep: int = 10_000
    log_keep_bytes: int = 32 << 20
    send_window: int = SEND_WINDOW
    transfer: str = "two-step"
    transfer_chunk: int = CHUNK_BYTES
    max_state: int = 4 << 30
    join: bool = False
    cluster: str = "joram"
    secret: str = ""

    @property
    def early(self) -> bool:
        """Tell whether sent messages are confirmed before the other replicas have them."""
        return self.propagation == PROPAGATIONS[1]

    @property
    def primary(self) -> bool:
        """Tell whether only the side with a majority may serve."""
        return self.partitions == PARTITIONS[0]

    @property
    def lease(self) -> float:
        """The seconds for which the master may release effects after a majority has heard from it.

        Shorter than the time for which members refuse to elect another master (``detection_timeout``), by a margin for
        clocks that run at different rates.
        """
        return 0.8 * self.detection_timeout

    @classmethod
    def from_config(cls, config: Config) -> JoramOptions:
        """Read ``config.options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range, or ``peers`` is not usable.
        """
        if config.node not in config.peers:
            raise ConfigError(f"peers: {config.node!r}, this node, is missing; design joram needs every replica")
        if len(config.peers) > MAX_MEMBERS:
            raise ConfigError(f"peers: {len(config.peers)} replicas; design joram takes at most {MAX_MEMBERS}")
        options = config.options
        if options.get("join") and list(config.peers)[-1] != config.node:
            raise ConfigError(f"peers: {config.node!r} is to join, so it must be the last one")
        timeout = seconds(options, "detection_timeout", cls.detection_timeout)
        interval = seconds(options, "heartbeat_interval", timeout / 5)
        if interval > timeout / 2:
            raise ConfigError(
                f"options.heartbeat_interval: {interval} is more than half of detection_timeout ({timeout})"
            )
        sync = seconds(options, "sync_interval", cls.sync_interval)
        if sync > timeout / 2:
            raise ConfigError(f"options.sync_interval: {sync} is more than half of detection_timeout ({timeout})")
        expected = whole(options, "nb_cluster_expected", len(config.peers))
        if expected > len(config.peers):
            raise ConfigError(f"options.nb_cluster_expected: {expected}, but peers has {len(config.peers)}")
        return cls(
            ack=choice(options, "ack", ACKS),
            propagation=choice(options, "propagation", PROPAGATIONS),
            sync_interval=sync,
            partitions=choice(options, "partitions", PARTITIONS),
            nb_cluster_expected=expected,
            restart_expected=expected if "nb_cluster_expected" in options else 0,
            detection_timeout=timeout,
            heartbeat_interval=interval,
            log_keep=whole(options, "log_keep", cls.log_keep),
            log_keep_bytes=whole(options, "log_keep_bytes", cls.log_keep_bytes),
            send_window=whole(options, "send_window", cls.send_window),
            transfer=choice(options, "transfer", TRANSFERS),
            transfer_chunk=whole(options, "transfer_chunk", cls.transfer_chunk),
            max_state=whole(options, "max_state", cls.max_state),
            join=flag(options, "join"),
            secret=options.get("secret", cls.secret),
            cluster=str(options.get("cluster", cls.cluster)),
        )
