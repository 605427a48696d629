"""The HA designs by name. A new design is one package and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from nodes.reference.api import Broker, Config, ConfigError, Design

DESIGNS = {
    "standalone": "nodes.reference.designs.standalone:Standalone",
    "joram": "nodes.reference.designs.joram.design:JoramDesign",
    "icestorm": "nodes.reference.designs.icestorm.design:IceStormDesign",
    "qpid": "nodes.reference.designs.qpid.design:QpidDesign",
    "fiorano": "nodes.reference.designs.fiorano.design:FioranoDesign",
}


def design_factory(name: str) -> Callable[[Broker], Design]:
    """Return the class of the design with this name; calling it with the broker creates a Design.

    Raises:
        ConfigError: there is no design of that name.
    """
    target = DESIGNS.get(name)
    if target is None:
        raise ConfigError(f"design: there is no {name!r}; choose one of {', '.join(DESIGNS)}")
    module, _, attribute = target.partition(":")
    return cast("Callable[[Broker], Design]", getattr(importlib.import_module(module), attribute))


def is_in_memory(config: Config) -> bool:
    """Tell whether the design keeps the broker's state on another machine; the node's database is then an in-memory
    copy.
    """
    return bool(getattr(design_factory(config.design), "in_memory", _never)(config))


def _never(config: Config) -> bool:
    return False


def make_design(broker: Broker) -> Design:
    """Create the design that the broker's configuration names; raises ConfigError as ``design_factory`` does."""
    return design_factory(broker.config.design)(broker)
