"""A server's configuration: the HA layer as the document names it, and the options that this project adds
[Terminology].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.api import Config, ConfigError
from nodes.reference.designs.fiorano.repository import COUNTER, STAMPS
from nodes.reference.option_values import Options, choice, seconds, whole
from nodes.reference.replication.transfer import CHUNK_BYTES

REPLICATED_MODE, SHARED_MODE = MODES = ("replicated", "shared")
DATABASE = "database"
LIMITATIONS = (DATABASE,)
"""Limitations of the documented design that can be left in place."""

_LAYER: Mapping[str, type] = {
    "Primary": bool, "Lockfile": str, "BackupHAIPAddress": str, "BackupHAPort": int, "GatewayServerIPAddress": str,
    "GatewayServerPort": int,
}  # fmt: skip
_WORDS = {bool: "true or false", str: "a text", int: "a port (1 to 65535)"}


@dataclass(frozen=True)
class HALayer:
    """The HA layer configuration, which both modes need.

    ``primary``: whether this server runs with the primary profile. ``lockfile`` is the file on the gateway machine.
    ``backup`` is the host and port of the other server's HA channel, ``gateway`` those of the gateway.
    """

    primary: bool
    lockfile: str
    backup: tuple[str, int]
    gateway: tuple[str, int]


@dataclass(frozen=True)
class FioranoOptions:
    """The options that define how the two servers work together. Times are in seconds.

    ``mode``: two databases, one replicated to the other, or one shared database. ``lease`` is the lock's lease.
    ``heartbeat`` is the interval of heartbeats on the HA channel; four missing ones mean a broken channel.
    ``start_alone``: serve without having met the other server. ``lock``: without it every server acts as if it held the
    lock. ``fencing``: the lock's epochs count, and the lease is checked before anything is confirmed; without it the
    lock is as plain as the document's. ``stamps``: the criterion that decides which repository is newer. ``database``
    is the address of the shared database's service; without an answer for ``database_timeout`` it counts as
    unreachable. ``page``: approximate size in bytes of a page of a synchronisation; at most ``page_window`` pages are
    in flight. ``as_documented``: limitations that are left as in the document.
    """

    layer: HALayer
    peer: str
    mode: str = REPLICATED_MODE
    lease: float = 1.0
    heartbeat: float = 0.25
    start_alone: bool = False
    lock: bool = True
    fencing: bool = True
    stamps: str = COUNTER
    database: tuple[str, int] | None = None
    database_timeout: float = 1.0
    page: int = CHUNK_BYTES
    page_window: int = 16
    as_documented: frozenset[str] = frozenset()
    cluster: str = "fiorano"
    secret: str = ""

    @property
    def silence(self) -> float:
        """Seconds without a heartbeat after which the HA channel counts as broken."""
        return 4 * self.heartbeat

    @property
    def channel(self) -> str:
        """The cluster name that both servers use; it includes the mode, so that servers of different modes refuse each
        other.
        """
        return f"{self.cluster}, {self.mode} mode"

    @classmethod
    def from_config(cls, config: Config) -> FioranoOptions:
        """Read ``config.options``; this project's own options have defaults.

        Raises:
            ConfigError: a parameter of the HA layer is missing or unknown, a value can't be used, or ``peers`` are not
                two servers.
        """
        options = config.options
        layer = read_layer(options)
        peer = _peer(config, layer)
        mode = choice(options, "mode", MODES)
        database = _address(options.get("database"))
        if mode == SHARED_MODE and database is None:
            raise ConfigError("options.database: is missing; mode shared needs [host, port] of the database's service")
        return cls(
            layer, peer, mode,
            lease=seconds(options, "lease", cls.lease),
            heartbeat=seconds(options, "heartbeat", cls.heartbeat),
            start_alone=switch(options, "start_alone", cls.start_alone),
            lock=switch(options, "lock", cls.lock),
            fencing=switch(options, "fencing", cls.fencing),
            stamps=choice(options, "stamps", STAMPS),
            database=database,
            database_timeout=seconds(options, "database_timeout", cls.database_timeout),
            page=whole(options, "page", cls.page),
            page_window=whole(options, "page_window", cls.page_window),
            as_documented=read_limitations(options.get("as_documented", "")),
            cluster=str(options.get("cluster", cls.cluster)),
            secret=str(options.get("secret", cls.secret)),
        )  # fmt: skip


def read_layer(options: Options) -> HALayer:
    """Read the HA layer's parameters, all of which are required.

    Raises:
        ConfigError: a parameter is missing, can't be used, or is unknown (it begins with a capital letter, as the
            document's parameters do).
    """
    for name in options:
        if name[:1].isupper() and name not in _LAYER:
            raise ConfigError(f"options.{name}: the HA layer has no such parameter (it has: {', '.join(_LAYER)})")
    for name, kind in _LAYER.items():
        if name not in options:
            raise ConfigError(f"options.{name}: is missing; the HA layer needs it in both modes")
        value = options[name]
        port = type(value) is int and 0 < value < 65536
        if type(value) is not kind or value == "" or (kind is int and not port):
            raise ConfigError(f"options.{name}: {value!r} is not {_WORDS[kind]}")
    return HALayer(options["Primary"], options["Lockfile"], (options["BackupHAIPAddress"], options["BackupHAPort"]),
                   (options["GatewayServerIPAddress"], options["GatewayServerPort"]))


def read_limitations(text: Any) -> frozenset[str]:
    """Parse a comma-separated list of limitations; raises ConfigError for an unknown one."""
    names = frozenset(filter(None, str(text).split(",")))
    for name in sorted(names):
        if name not in LIMITATIONS:
            raise ConfigError(f"options.as_documented: {name!r} is none of {', '.join(LIMITATIONS)}")
    return names


def switch(options: Options, name: str, default: bool) -> bool:
    """Read a boolean option; raises ConfigError if it is neither true nor false."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"options.{name}: {value!r} is neither true nor false")
    return value


def _peer(config: Config, layer: HALayer) -> str:
    """Return the name of the other server, whose address must be the HA layer's."""
    others = [name for name in config.peers if name != config.node]
    if config.node not in config.peers or len(others) != 1:
        raise ConfigError(f"peers: are not {config.node!r}, this server, and one other; design fiorano is a pair")
    if tuple(config.peers[others[0]]) != layer.backup:
        host, port = layer.backup
        raise ConfigError(f"peers.{others[0]}: is not at {host}:{port}, which BackupHAIPAddress and BackupHAPort say")
    return others[0]


def _address(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or [type(part) for part in value] != [str, int] or not 0 < value[1] < 65536:
        raise ConfigError("options.database: is not [host, port]")
    return value[0], value[1]
