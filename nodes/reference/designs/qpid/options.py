"""The options of the design ``qpid``, checked."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.api import Config, ConfigError

NONE, CONFIGURATION, MESSAGES = "none", "configuration", "messages"
LEVELS = (MESSAGES, CONFIGURATION, NONE)
"""What ``qpid.replicate`` may be, the default first."""

BUILTIN, BY_HAND = "builtin", "none"
MANAGERS = (BUILTIN, BY_HAND)
SYNC, ASYNC, NO_STORE = "sync", "async", "none"
STORES = (SYNC, ASYNC, NO_STORE)

LM1, LM2, LM3, LM4, LM5, LM6B = "LM1", "LM2", "LM3", "LM4", "LM5", "LM6b"
LC2C, LC3, LC4, LC6 = "LC2c", "LC3", "LC4", "LC6"
LIMITATIONS = (LM1, LM2, LM3, LM4, LM5, LM6B, LC2C, LC3, LC4, LC6)
"""Sections of *Current Limitations* that can be left as the document leaves them."""


@dataclass(frozen=True)
class Options:
    """How brokers of one cluster work together. Times are in seconds.

    ``replicate`` is the level of queues and exchanges that say nothing themselves, ``patterns`` of those whose name
    matches (the first that does tells). ``catchup_timeout``: how long completions wait for a backup that is not caught
    up. ``silence``: how long a peer may say nothing before its connection counts as broken. ``manager``: who starts the
    services; ``manager_lease`` is for how long a broker may go on after its manager has let it. ``sequence_bits``:
    width of the sequence numbers that brokers tell each other. ``store``: whether the store is on disk before a message
    counts as stored. ``secret``: what brokers must share for a link; empty for none. ``as_documented``: limitations
    that are left as they are in the document. ``virtual_address``: the host that moves with the primary; empty: none.
    """

    replicate: str = MESSAGES
    patterns: tuple[tuple[str, str], ...] = ()
    catchup_timeout: float = 5.0
    silence: float = 1.0
    manager: str = BUILTIN
    manager_address: tuple[str, int] | None = None
    manager_lease: float = 1.0
    sequence_bits: int = 32
    store: str = SYNC
    as_documented: frozenset[str] = frozenset()
    virtual_address: str = ""
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
        return next((level for pattern, level in self.patterns if fnmatch.fnmatchcase(name, pattern)), self.replicate)

    @classmethod
    def from_config(cls, config: Config) -> Options:
        """Read ``config.options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range, or ``peers`` is not usable.
        """
        if config.node not in config.peers:
            raise ConfigError(f"peers: {config.node!r}, this node, is missing; design qpid needs every broker")
        options = config.options
        bits = options.get("sequence_bits", cls.sequence_bits)
        if isinstance(bits, bool) or not isinstance(bits, int) or not 3 <= bits <= 62:
            raise ConfigError(f"options.sequence_bits: {bits!r} is not a whole number from 3 to 62")
        return cls(
            replicate=_choice(options, "replicate", LEVELS),
            patterns=read_patterns(options.get("patterns", "")),
            catchup_timeout=_seconds(options, "catchup_timeout", cls.catchup_timeout),
            silence=_seconds(options, "detection_timeout", cls.silence),
            manager=_choice(options, "manager", MANAGERS),
            manager_address=_address(options.get("manager_address")),
            manager_lease=_seconds(options, "manager_lease", cls.manager_lease),
            sequence_bits=bits,
            store=_choice(options, "store", STORES),
            as_documented=read_limitations(options.get("as_documented", "")),
            virtual_address=_virtual(config, str(options.get("virtual_address", cls.virtual_address))),
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


def _virtual(config: Config, address: str) -> str:
    """The virtual address, which is none of the brokers' [Broker discovery and lifecycle]."""
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


def _choice(options: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise ConfigError(f"options.{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def _seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 3600:
        raise ConfigError(f"options.{name}: {value!r} is not a number of seconds between 0 and 3600")
    return float(value)
