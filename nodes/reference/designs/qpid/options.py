"""The options of the design ``qpid``, checked."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.api import Config, ConfigError
from nodes.reference.option_values import MAX_PAGE, choice, movable_address, seconds, whole

NONE, CONFIGURATION, MESSAGES = "none", "configuration", "messages"
LEVELS = (MESSAGES, CONFIGURATION, NONE)
"""The values of ``qpid.replicate``, the default first."""

YES, NO = COUNTED = ("yes", "no")
ABORT, CARRY_ON = STORE_ERRORS = ("abort", "carry-on")
"""The values of ``qpid.store_errors``, the default first."""
BUILTIN, BY_HAND, KEEPALIVED, PACEMAKER = "builtin", "none", "keepalived", "pacemaker"
MANAGERS = (BUILTIN, BY_HAND, KEEPALIVED, PACEMAKER)
FENCING = (PACEMAKER,)
"""Third-party managers, which end brokers that they have lost."""
HOT, COLD = "hot", "cold"
STANDBYS = (HOT, COLD)
"""Hot: backups run and copy the primary's queues. Cold: when the primary is gone, a broker starts from its store."""
SYNC, ASYNC, NO_STORE = "sync", "async", "none"
STORES = (SYNC, ASYNC, NO_STORE)

LM1, LM2, LM3, LM4, LM5, LM6A, LM6B = "LM1", "LM2", "LM3", "LM4", "LM5", "LM6a", "LM6b"
LC2A, LC2B, LC2C, LC3, LC4, LC5, LC6 = "LC2a", "LC2b", "LC2c", "LC3", "LC4", "LC5", "LC6"
LIMITATIONS = (LM1, LM2, LM3, LM4, LM5, LM6A, LM6B, LC2A, LC2B, LC2C, LC3, LC4, LC5, LC6)
"""Sections of *Current Limitations* that can be left as the document leaves them."""


MAX_BODY = 32 << 20
"""Maximum body size in bytes, such that a message with its headers fits into a frame to a backup."""
LEAST_SECONDS = 0.05
"""Lower bound of options that determine heartbeat intervals."""


@dataclass(frozen=True)
class QpidOptions:
    """The options that define how the brokers of one cluster work together. Times are in seconds.

    ``replicate`` is the level of queues and exchanges without a level argument; ``patterns`` are levels by name (the
    first pattern that matches applies). ``catchup_timeout``: the time for which completions wait for a backup that is
    not caught up. ``silence``: the silence of a peer after which its connection counts as broken. ``manager``: the
    program that starts the services. ``manager_lease``: the time for which a broker may continue after its manager has
    permitted it. ``eviction``: the time within which a fencing manager has ended every broker that it has lost.
    ``sequence_bits``: width of the sequence numbers in messages between brokers. ``store``: whether the store is on
    disk before a message counts as stored. ``store_errors``: a backup's reaction when its store fails, for queues
    without that argument. ``secret``: the secret that brokers must share for a link; empty for none. ``as_documented``:
    limitations that are left as they are in the document. ``virtual_address``: the host that moves with the primary;
    empty for none. ``catchup_chunk``: approximate size in bytes of a catch-up group. ``catchup_backlog``: maximum size
    in bytes of the events that a primary holds for a backup during its catch-up. ``standby``: one of ``STANDBYS``.
    ``answer_page``: approximate size in bytes of each page of a long list.
    """

    replicate: str = MESSAGES
    patterns: tuple[tuple[str, str], ...] = ()
    catchup_timeout: float = 5.0
    catchup_chunk: int = 64 << 10
    catchup_backlog: int = 64 << 20
    silence: float = 1.0
    manager: str = BUILTIN
    manager_address: tuple[str, int] | None = None
    manager_lease: float = 1.0
    eviction: float = 10.0
    sequence_bits: int = 32
    store: str = SYNC
    store_errors: str = ABORT
    as_documented: frozenset[str] = frozenset()
    virtual_address: str = ""
    disaster: tuple[str, ...] = ()
    disaster_counted: bool = True
    standby: str = HOT
    answer_page: int = MAX_PAGE
    cluster: str = "qpid"
    secret: str = ""

    @property
    def beat(self) -> float:
        """Seconds between heartbeats on a link."""
        return self.silence / 4

    def level(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the level of a queue or exchange: that of its argument, else that of its name, else the default."""
        own = arguments.get("qpid.replicate")
        if own is not None:
            return str(own)
        patterns = self.patterns if LC5 not in self.as_documented else ()
        return next((level for pattern, level in patterns if fnmatch.fnmatchcase(name, pattern)), self.replicate)

    @classmethod
    def from_config(cls, config: Config) -> QpidOptions:
        """Read ``config.options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range, or ``peers`` is not usable.
        """
        if config.node not in config.peers:
            raise ConfigError(f"peers: {config.node!r}, this node, is missing; design qpid needs every broker")
        options = config.options
        whole(options, "max_body", 1, most=MAX_BODY)
        standby = choice(options, "standby", STANDBYS)
        if standby == COLD and options.get("store") == NO_STORE:
            raise ConfigError(f"options.store: {NO_STORE!r} leaves nothing from which the next broker could start "
                              f"(options.standby is {COLD!r})")
        return cls(
            replicate=choice(options, "replicate", LEVELS),
            patterns=read_patterns(options.get("patterns", "")),
            catchup_timeout=seconds(options, "catchup_timeout", cls.catchup_timeout),
            catchup_chunk=whole(options, "catchup_chunk", cls.catchup_chunk, 1, 1 << 24),
            catchup_backlog=whole(options, "catchup_backlog", cls.catchup_backlog),
            silence=seconds(options, "detection_timeout", cls.silence, LEAST_SECONDS),
            manager=choice(options, "manager", MANAGERS),
            manager_address=_address(options.get("manager_address")),
            manager_lease=seconds(options, "manager_lease", cls.manager_lease, LEAST_SECONDS),
            eviction=seconds(options, "eviction_timeout", cls.eviction),
            sequence_bits=whole(options, "sequence_bits", cls.sequence_bits, 3, 62),
            store=choice(options, "store", STORES),
            store_errors=choice(options, "store_errors", STORE_ERRORS),
            as_documented=read_limitations(options.get("as_documented", "")),
            virtual_address=_virtual(config, options.get("virtual_address", cls.virtual_address)),
            standby=standby,
            answer_page=whole(options, "answer_page", cls.answer_page, 1, MAX_PAGE),
            disaster=_disaster(config),
            disaster_counted=choice(options, "dr_counted", COUNTED) == YES,
            cluster=str(options.get("cluster", cls.cluster)),
            secret=str(options.get("secret", cls.secret)),
        )


def read_patterns(text: Any) -> tuple[tuple[str, str], ...]:
    """Parse a comma-separated list of ``PATTERN=LEVEL``, with shell patterns; raises ConfigError for anything else."""
    found = []
    for part in filter(None, str(text).split(",")):
        pattern, equals, level = part.partition("=")
        if not pattern or not equals or level not in LEVELS:
            raise ConfigError(f"options.patterns: {part!r} is not PATTERN=LEVEL with one of {', '.join(LEVELS)}")
        found.append((pattern, level))
    return tuple(found)


def read_limitations(text: Any) -> frozenset[str]:
    """Parse a comma-separated list of limitations; raises ConfigError for one that the document does not have."""
    names = frozenset(filter(None, str(text).split(",")))
    for name in sorted(names):
        if name not in LIMITATIONS:
            raise ConfigError(f"options.as_documented: {name!r} is none of {', '.join(LIMITATIONS)}")
    return names


def _disaster(config: Config) -> tuple[str, ...]:
    """Return the brokers for disaster recovery at another site, which only an administrator promotes."""
    names = tuple(filter(None, str(config.options.get("dr", "")).split(",")))
    for name in names:
        if name not in config.peers:
            raise ConfigError(f"options.dr: {name!r} is none of the brokers in peers")
    if len(names) >= len(config.peers):
        raise ConfigError("options.dr: every broker is for disaster recovery, which leaves none to recover from")
    return names


def _virtual(config: Config, value: Any) -> str:
    """Return the virtual address, which must not be a broker's address [Broker discovery and lifecycle]."""
    address = movable_address("options.virtual_address", value) if value else ""
    for name, (host, _) in config.peers.items():
        if address and host == address:
            raise ConfigError(f"peers.{name}: is at the virtual address {host}; brokers need real addresses")
    return address


def _address(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or [type(part) for part in value] != [str, int]:
        raise ConfigError("options.manager_address: is not [host, port]")
    return value[0], value[1]
