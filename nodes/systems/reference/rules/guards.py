"""Invariants that ask a broker's guards: limits by default, configurations, and what replicas send each other."""

from __future__ import annotations

from typing import Any, Protocol

from nodes.systems.reference.probes import configurations, design_options, destinations, guards
from stormproof.contracts.invariant import Invariant, Watcher


class Common(Protocol):
    """The part of a broker that all designs share."""

    def unlike_page(self) -> str:
        """Describe a default that differs from what its page promises; empty if there is none."""
        ...

    @property
    def design(self) -> str:
        """The name of the broker's design."""
        ...

    def runs_services(self) -> bool:
        """Return whether all services run."""
        ...

    def admits_early(self) -> str:
        """Tell that clients are admitted though the services do not run; empty if they are not."""
        ...

    def unlike_configured(self) -> str:
        """Describe how services do otherwise than their configuration says; empty if they do not."""
        ...

    def misjudged_rows(self) -> str:
        """Describe a row that is accepted or refused wrongly; empty if there is none."""
        ...


class Guarded(Protocol):
    """A program with such a part."""

    @property
    def common(self) -> Common: ...


class AsksOnce(Watcher):
    """Notes whether a question was asked whose answer is the same for all nodes."""

    period = 1.0

    def __init__(self) -> None:
        self._asked = False

    def inspect(self, node: str, program: Any) -> str:
        """Ask it once."""
        asked, self._asked = self._asked, True
        return "" if asked else self.ask(program)

    def ask(self, program: Any) -> str:
        """Ask the question. Returns as ``look`` does."""
        raise NotImplementedError


class DefaultsAsPromised(Watcher):
    """Stateless check of a broker's defaults."""

    period = 5.0

    def inspect(self, node: str, program: Guarded) -> str:
        """Compare them with the page."""
        return program.common.unlike_page()


class RowsJudgedRightly(AsksOnce):
    """Asks the guards of rows once about the sample, and repeatedly about the rows that each broker has."""

    period = 10.0

    def inspect(self, node: str, program: Guarded) -> str:
        """Ask about both."""
        return super().inspect(node, program) or program.common.misjudged_rows()

    def ask(self, program: Guarded) -> str:
        """Ask about the sample."""
        return guards.misjudged_sample()


class AdmitsWithServices(Watcher):
    """Notes the brokers whose services run."""

    fields = ("serving", "committed")

    def __init__(self) -> None:
        self._running: set[str] = set()

    def look(self, node: str, program: Guarded, now: Any, before: Any) -> str:
        """Ask whether it admits clients; when it begins to, look whether there is what its services deploy."""
        common = program.common
        if not common.runs_services():
            self._running.discard(node)
            return common.admits_early()
        if node in self._running:
            return ""
        self._running.add(node)
        return common.unlike_configured()


class ServesAsConfigured(Watcher):
    """Stateless check of a broker's services."""

    period = 1.0

    def inspect(self, node: str, program: Guarded) -> str:
        """Compare what they did with their configuration."""
        return program.common.unlike_configured()


class ConfigurationsJudgedRightly(AsksOnce):
    """Asks the guards of configurations."""

    def ask(self, program: Guarded) -> str:
        """Ask about all options."""
        return configurations.misjudged() or design_options.misjudged(program.common.design)


class DestinationsJudgedRightly(AsksOnce):
    """Asks the reader of frames."""

    period = 3.0

    def ask(self, program: Guarded) -> str:
        """Ask about the destinations of all designs."""
        return destinations.misread()


DESTINATIONS_JUDGED = Invariant(
    "destinations-judged", "a frame to what only other designs have is refused, and any other is taken for what it is",
    "docs/stomp.md: destinations; docs/designs/qpid.md: requests are SENDs to /management", DestinationsJudgedRightly)
DEFAULTS_AS_PROMISED = Invariant(
    "defaults-as-promised", "what a configuration does not say is as the pages promise", "docs/stomp.md, Running a "
    "broker: the table of limits; Window; docs/designs/joram.md, Networks", DefaultsAsPromised)
CONFIGURATIONS_JUDGED = Invariant(
    "configurations-judged", "a configuration that makes no sense is refused, with the name of the setting, and any "
    "other is taken as it is", "config.py: a setting is missing, unknown, or of the wrong type; the "
    "tables of options on the designs' pages",
    ConfigurationsJudgedRightly)
ROWS_JUDGED = Invariant(
    "rows-judged", "what another replica sends of its state is taken, and refused where a column is spoilt",
    "row_schema.py: input from a link is checked for forms and references", RowsJudgedRightly)
ADMITS_WITH_SERVICES = Invariant(
    "admits-with-services", "a master admits clients once all services run, and what they deploy is there",
    "docs/designs/joram.md, Services: the master admits clients and other servers once all services run",
    AdmitsWithServices)
SERVICES_AS_CONFIGURED = Invariant(
    "services-as-configured", "what services deploy is there, a client inside the broker settles each message in a "
    "branch if it takes exactly once, and otherwise in none, and no broker gives up for services that it does not have",
    "reaction.py, HA Joram 4.6.1: the qualities of service; destinations and durable subscriptions are deployed before "
    "any client is admitted", ServesAsConfigured)
GUARDS = (DEFAULTS_AS_PROMISED, CONFIGURATIONS_JUDGED, DESTINATIONS_JUDGED, SERVICES_AS_CONFIGURED)
