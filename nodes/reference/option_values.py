"""Reads values of a configuration's options; a wrong one is reported in one line that names the option."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from nodes.reference.api import ConfigError

MAX_SECONDS = 3600.0
MAX_PAGE = 16_000
"""Approximate maximum number of bytes of one page of a list, because a header has to hold it."""
Options = Mapping[str, Any]


def choice(options: Options, name: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices, by default the first; raises ConfigError."""
    value = options.get(name, choices[0])
    if value not in choices:
        raise ConfigError(f"options.{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def seconds(options: Options, name: str, default: float, least: float | None = None) -> float:
    """Return a time of less than an hour: above zero, or from ``least`` on; raises ConfigError."""
    value = options.get(name, default)
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and value < MAX_SECONDS
    if not right or not (value > 0 if least is None else value >= least):
        span = "between 0 and" if least is None else f"from {least:g} to"
        raise ConfigError(f"options.{name}: {value!r} is not a number of seconds {span} {MAX_SECONDS:g}")
    return float(value)


def whole(options: Options, name: str, default: int, least: int = 1, most: int | None = None) -> int:
    """Return a whole number from ``least`` to ``most``; raises ConfigError."""
    value = options.get(name, default)
    if type(value) is not int or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else "above zero" if least == 1 else f"from {least} on"
        raise ConfigError(f"options.{name}: {value!r} is not a whole number {span}")
    return value


def movable_address(setting: str, value: Any) -> str:
    """Return an IPv4 address that machines can have for a while; raises ConfigError, which names the setting."""
    try:
        address = ipaddress.IPv4Address(value) if isinstance(value, str) else None
    except ValueError:
        address = None
    if address is None or address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ConfigError(f"{setting}: {value!r} is not an IPv4 address that a machine can have")
    return str(address)


def flag(options: Options, name: str) -> bool:
    """Return true or false, by default false; raises ConfigError."""
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise ConfigError(f"options.{name}: {value!r} is neither true nor false")
    return value
