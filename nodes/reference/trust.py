"""Trust between programs of a group: all that share its secret are trusted; without one, all on this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from nodes.reference.api import Config, ConfigError

NO_SECRET = "no secret: anybody on this machine can join as a peer, and links listen on loopback addresses only"
"""The warning that a program without a secret logs at its start."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener at that address, or that name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_secret(config: Config) -> bool:
    """Return whether a broker shares a secret with its peers."""
    return bool(config.options.get("secret"))


def demand_secret(setting: str, host: str) -> None:
    """Raise ConfigError for an address that can be reached from other machines; for programs without a secret."""
    if not is_loopback(host):
        raise ConfigError(f"options.secret: is missing, without which links are between brokers on one machine, at "
                          f"loopback addresses; {setting} is at {host!r}")


def check_trust(config: Config) -> bool:
    """Return whether strangers on this machine can use a broker's links, because it has no secret.

    Raises:
        ConfigError: strangers on other machines could.
    """
    if has_secret(config):
        return False
    linked = False
    for setting, host in _linked(config):
        demand_secret(setting, host)
        linked = True
    return linked


def _linked(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the settings that name addresses of links, including this broker's own, with their hosts."""
    for name, (host, _) in config.peers.items():
        yield f"peers.{name}", host
    for place, replicas in enumerate(config.networks):
        for host, _ in replicas:
            yield f"networks.{place}", host
    for server, replicas in config.servers.items():
        for host, _ in replicas:
            yield f"servers.{server}", host
