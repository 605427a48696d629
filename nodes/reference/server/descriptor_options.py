"""Options in a descriptor: ``property`` elements, by the names of the brokers' options.

``nbClusterExpected`` has the document's name (HA Joram, 4.7.2). A property in ``config`` applies to all servers that
have such an option; one in a ``cluster``, or in a ``server`` outside any cluster, applies to that server only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from nodes.reference.api import Config, ConfigError
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.engine.limits import Limits

NB_CLUSTER_EXPECTED = "nbClusterExpected"
_LONG_OPTIONS = {NB_CLUSTER_EXPECTED: "nb_cluster_expected"}
_NOT_WRITTEN = ("cluster", "secret", "join", "restart_expected")
"""Options that the descriptor gives in another form, that must not be in a file that is passed around (the secret), or
that belong to a single start."""

OF_ALL: Mapping[str, type] = {
    **{each.name: type(each.default) for each in fields(Limits)}, "network_timeout": float,
}
"""Properties that every server has, with their types."""
OF_CLUSTERS: Mapping[str, type] = {
    each.name: type(each.default) for each in fields(JoramOptions) if each.name not in _NOT_WRITTEN
}
"""Additional properties of replicated servers."""


def known(replicated: bool) -> dict[str, type]:
    """Return the properties of a server, by name, with their types."""
    return {**OF_ALL, **OF_CLUSTERS} if replicated else dict(OF_ALL)


def option_of(name: str, value: str, replicated: bool = True) -> tuple[str, Any]:
    """Return the option that a property sets, and its value.

    Raises:
        ConfigError: there is no such property, or the text is not a value of its type.
    """
    option = _LONG_OPTIONS.get(name, name)
    kinds = known(replicated)
    if option not in kinds:
        of_clusters = " outside a cluster" if option in OF_CLUSTERS else ""
        raise ConfigError(f"unknown property {name!r}{of_clusters} (known: {', '.join(kinds)})")
    kind = kinds[option]
    try:
        return option, kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"property {name}: {value!r} is not {wanted}") from None


def check_options(options: Mapping[str, Any], replicas: Sequence[str]) -> None:
    """Check a server's options together; ``replicas`` are the names of a cluster's replicas, empty for other servers.

    Raises:
        ConfigError: one can't be used; the text begins with ``options.NAME:``.
    """
    Limits.from_options(options)
    if replicas:
        peers = dict.fromkeys(replicas, ("", 1))
        JoramOptions.from_config(Config(replicas[0], "joram", ".", peers=peers, options=options))
