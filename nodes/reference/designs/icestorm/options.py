"""The options of the design ``icestorm``, checked."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.reference.api import Config, ConfigError
from nodes.reference.option_values import MAX_PAGE, choice, seconds, whole

STAMPS = ("counter", "wall-clock")
CONFIRMED, LOCAL = READS = ("confirmed", "local")
CHECKED, ON_WRITE = STEP_DOWNS = ("checked", "on-write")
KEPT, DISCARDED = OFFLINE_EVENTS = ("kept", "discarded")
ALL, ONE = PUBLISHER_ENDPOINTS = ("all", "one")
MAX_REPLICAS = 64
MAX_WAITING = 100_000
"""Maximum number of events that may wait for one subscriber."""
_MIN_SECONDS = 0.001


@dataclass(frozen=True)
class IceStormOptions:
    """The options that define how a group of replicas works together. Times are in seconds.

    ``election_timeout``: the time within which invitations must be accepted, and the interval at which a coordinator
    whose group does not replicate searches for other groups. ``master_timeout``: the interval at which slaves ask their
    coordinator whether it still is theirs, and at which coordinators check their group and search for others.
    ``response_timeout``: the time within which a peer must answer. ``stamp``: the criterion for the most recent
    database. ``reads``: whether a majority confirms the answer to a question. ``step_down``: whether a coordinator
    checks its majority regularly, or notices its loss only when it needs the majority. ``retry_interval``: the pause
    between attempts to deliver to a subscriber that failed; ``offline_events``: whether the events that wait for it are
    kept or discarded in the meantime. ``publisher_endpoints``: whether a publisher's proxy names all replicas, or only
    the one that was asked for it. ``acm_timeout``: the time after which idle client connections are closed (0: never).
    ``answer_page``: approximate size in bytes of each page of a long list. ``max_waiting``: maximum number of events
    that wait for one subscriber; beyond it, the oldest are dropped.
    """

    election_timeout: float = 1.0
    master_timeout: float = 1.0
    response_timeout: float = 0.5
    stamp: str = "counter"
    reads: str = CONFIRMED
    step_down: str = CHECKED
    retry_interval: float = 0.2
    delivery_timeout: float = 1.0
    offline_events: str = KEPT
    publisher_endpoints: str = ALL
    acm_timeout: float = 0.0
    answer_page: int = MAX_PAGE
    max_waiting: int = MAX_WAITING
    cluster: str = "icestorm"

    @classmethod
    def from_config(cls, config: Config) -> IceStormOptions:
        """Read ``config.options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range, or ``peers`` is not usable.
        """
        if config.node not in config.peers:
            raise ConfigError(f"peers: {config.node!r}, this node, is missing; design icestorm needs every replica")
        if len(config.peers) > MAX_REPLICAS:
            raise ConfigError(f"peers: {len(config.peers)} replicas; design icestorm takes at most {MAX_REPLICAS}")
        options = config.options
        return cls(
            election_timeout=seconds(options, "election_timeout", cls.election_timeout, _MIN_SECONDS),
            master_timeout=seconds(options, "master_timeout", cls.master_timeout, _MIN_SECONDS),
            response_timeout=seconds(options, "response_timeout", cls.response_timeout, _MIN_SECONDS),
            stamp=choice(options, "stamp", STAMPS),
            reads=choice(options, "reads", READS),
            step_down=choice(options, "step_down", STEP_DOWNS),
            retry_interval=seconds(options, "retry_interval", cls.retry_interval, _MIN_SECONDS),
            delivery_timeout=seconds(options, "delivery_timeout", cls.delivery_timeout, _MIN_SECONDS),
            offline_events=choice(options, "offline_events", OFFLINE_EVENTS),
            publisher_endpoints=choice(options, "publisher_endpoints", PUBLISHER_ENDPOINTS),
            acm_timeout=seconds(options, "acm_timeout", cls.acm_timeout, least=0.0),
            answer_page=whole(options, "answer_page", cls.answer_page, 1, MAX_PAGE),
            max_waiting=whole(options, "max_waiting", cls.max_waiting, 1, MAX_WAITING),
            cluster=str(options.get("cluster", cls.cluster)),
        )
