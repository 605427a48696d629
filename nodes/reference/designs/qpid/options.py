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
"""What ``qpid.replicate`` may be, the default first."""

YES, NO = COUNTED = ("yes", "no")
ABORT, CARRY_ON = STORE_ERRORS = ("abort", "carry-on")
"""What ``qpid.store_errors`` may be, the default first."""
BUILTIN, BY_HAND, KEEPALIVED, PACEMAKER = "builtin", "none", "keepalived", "pacemaker"
MANAGERS = (BUILTIN, BY_HAND, KEEPALIVED, PACEMAKER)
FENCING = (PACEMAKER,)
"""Managers that are not ours, and end what they have lost."""
HOT, COLD = "hot", "cold"
STANDBYS = (HOT, COLD)
"""Whether backups run and copy the primary's queues, or a broker is started from the primary's store when that is gone.
"""
SYNC, ASYNC, NO_STORE = "sync", "async", "none"
STORES = (SYNC, ASYNC, NO_STORE)

LM1, LM2, LM3, LM4, LM5, LM6A, LM6B = "LM1", "LM2", "LM3", "LM4", "LM5", "LM6a", "LM6b"
LC2A, LC2B, LC2C, LC3, LC4, LC5, LC6 = "LC2a", "LC2b", "LC2c", "LC3", "LC4", "LC5", "LC6"
LIMITATIONS = (LM1, LM2, LM3, LM4, LM5, LM6A, LM6B, LC2A, LC2B, LC2C, LC3, LC4, LC5, LC6)
"""Sections of *Current Limitations* that can be left as the document leaves them."""


MAX_BODY = 32 << 20
"""Bytes: with its headers a message fits into a frame to a backup."""
LEAST_SECONDS = 0.05
"""Of times that tell how often somebody gives a sign of life."""


@dataclass(frozen=True)
class Options:
    """How brokers of one cluster work together. Times are in seconds.

    ``replicate`` is the level of queues and exchanges that say nothing themselves, ``patterns`` of those whose name
    matches (the first that does tells). ``catchup_timeout``: how long completions wait for a backup that is not caught
    up. ``silence``: how long a peer may say nothing before its connection counts as broken. ``manager``: who starts the
    services; ``manager_lease`` is for how long a broker may go on after its manager has let it; ``eviction``: within
    which a manager that fences has ended whatever it has lost. ``sequence_bits``:
    width of the sequence numbers that brokers tell each other. ``store``: whether the store is on disk before a message
    counts as stored. ``store_errors``: what a backup does when its store fails, for queues that say nothing themselves.
    ``secret``: what brokers must share for a link; empty for none. ``as_documented``: limitations
    that are left as they are in the document. ``virtual_address``: the host that moves with the primary; empty: none.
    ``catchup_chunk``: bytes, about, of messages in one group of those that a backup lacks. ``catchup_backlog``: bytes
    of what happens meanwhile that a primary holds for it.
    ``standby``: one of ``STANDBYS``. ``answer_page``: bytes, about, of each page of a long list.
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
        """Seconds between signs of life on a link."""
        return self.silence / 4

    def level(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What is replicated of a queue or exchange: what it says itself, else what its name says, else the default."""
        own = arguments.get("qpid.replicate")
        if own is not None:
            return str(own)
        patterns = self.patterns if LC5 not in self.as_documented else ()
        return next((level for pattern, level in patterns if fnmatch.fnmatchcase(name, pattern)), self.replicate)

    @classmethod
    def from_config(cls, config: Config) -> Options:
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
    """``PATTERN=LEVEL`` joined by commas, the patterns as in a shell; raises ConfigError for anything else."""
    found = []
    for part in filter(None, str(text).split(",")):
        pattern, equals, level = part.partition("=")
        if not pattern or not equals or level not in LEVELS:
            raise ConfigError(f"options.patterns: {part!r} is not PATTERN=LEVEL with one of {', '.join(LEVELS)}")
        found.append((pattern, level))
    return tuple(found)


def read_limitations(text: Any) -> frozenset[str]:
    """Names of limitations joined by commas; raises ConfigError for one that the document does not have."""
    names = frozenset(filter(None, str(text).split(",")))
    for name in sorted(names):
        if name not in LIMITATIONS:
            raise ConfigError(f"options.as_documented: {name!r} is none of {', '.join(LIMITATIONS)}")
    return names


def _disaster(config: Config) -> tuple[str, ...]:
    """The brokers at another place, which only a person promotes."""
    names = tuple(filter(None, str(config.options.get("dr", "")).split(",")))
    for name in names:
        if name not in config.peers:
            raise ConfigError(f"options.dr: {name!r} is none of the brokers in peers")
    if len(names) >= len(config.peers):
        raise ConfigError("options.dr: every broker is for disaster recovery, which leaves none to recover from")
    return names


def _virtual(config: Config, value: Any) -> str:
    """The virtual address, which is none of the brokers' [Broker discovery and lifecycle]."""
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
