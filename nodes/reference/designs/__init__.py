"""The HA designs by name. A new design is one package and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from nodes.reference.api import Broker, Config, ConfigError, Design

DESIGNS = {
    "standalone": "nodes.reference.designs.standalone:Standalone",
    "joram": "nodes.reference.designs.joram.design:Joram",
    "icestorm": "nodes.reference.designs.icestorm.design:IceStorm",
    "qpid": "nodes.reference.designs.qpid.design:Qpid",
    "fiorano": "nodes.reference.designs.fiorano.design:Fiorano",
}


def design_factory(name: str) -> Callable[[Broker], Design]:
    """The class of the design of that name; called with the broker, it makes a Design.

    Raises:
        ConfigError: there is no design of that name.
    """
    target = DESIGNS.get(name)
    if target is None:
        raise ConfigError(f"design: there is no {name!r}; choose one of {', '.join(DESIGNS)}")
    module, _, attribute = target.partition(":")
    return cast("Callable[[Broker], Design]", getattr(importlib.import_module(module), attribute))


def is_in_memory(config: Config) -> bool:
    """Whether the design keeps the broker's state elsewhere: its own database is a working copy, which is in memory."""
    return bool(getattr(design_factory(config.design), "in_memory", _never)(config))


def _never(config: Config) -> bool:
    return False


def make_design(broker: Broker) -> Design:
    """The design that the broker's configuration names; raises ConfigError as ``design_factory`` does."""
    return design_factory(broker.config.design)(broker)
