"""Whom a program takes for one of its own group: those who share its secret; without one, those on this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from nodes.reference.api import Config, ConfigError

NO_SECRET = "no secret: anybody on this machine can join as a peer, and links listen on loopback addresses only"
"""What a program without a secret says when it starts."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener at that address, or that name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_secret(config: Config) -> bool:
    """Whether a broker shares a secret with its peers."""
    return bool(config.options.get("secret"))


def demand_secret(setting: str, host: str) -> None:
    """Raises ConfigError for an address that can be reached from elsewhere; for programs without a secret."""
    if not is_loopback(host):
        raise ConfigError(f"options.secret: is missing, without which links are between brokers on one machine, at "
                          f"loopback addresses; {setting} is at {host!r}")


def check_trust(config: Config) -> bool:
    """Whether a broker has links that strangers on this machine can use, because it has no secret.

    Raises:
        ConfigError: strangers elsewhere could.
    """
    if has_secret(config):
        return False
    linked = False
    for setting, host in _linked(config):
        demand_secret(setting, host)
        linked = True
    return linked


def _linked(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that name addresses of links, this broker's own among them, with their hosts."""
    for name, (host, _) in config.peers.items():
        yield f"peers.{name}", host
    for place, replicas in enumerate(config.networks):
        for host, _ in replicas:
            yield f"networks.{place}", host
    for server, replicas in config.servers.items():
        for host, _ in replicas:
            yield f"servers.{server}", host
