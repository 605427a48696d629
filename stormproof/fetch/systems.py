"""Systems whose brokers are fetched: the version of a test, and its folder on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.fetch.fetched import Fetched
from stormproof.fetch.fetching import Teller, fetch
from stormproof.fetch.recipes import recipe
from stormproof.test import Test

VERSION = "version"
"""The option with the version of a fetched broker."""
PROGRAM = "program"
"""The option with the path of what the user has on the machines, instead of a fetched broker."""


def version_option(name: str, packaged: str = "") -> Option:
    """Return the option for a system whose broker is fetched under this name. ``packaged`` is the origin of the usual
    program, if the broker is fetched only on request."""
    if packaged:
        pinned = " and ".join(recipe(name).pinned_versions())
        return Option(VERSION, "", f"version that `stormproof fetch {name}` brings ({pinned} pinned); empty: "
                      f"{packaged}")  # fmt: skip
    return Option(VERSION, recipe(name).version, f"version that `stormproof fetch {name}` brings")


class FetchingSystem(System):
    """A system that may have a broker in the user's cache."""

    fetched: str = ""
    """The name by which `stormproof fetch` brings the broker (``stormproof/fetch/recipes.toml``); empty: it comes by
    other ways. Its folder on a machine is ``machine.fetched``."""
    packaged: bool = False
    """The usual program comes by ``packages`` or ``distributions``; without a ``version`` nothing is fetched."""
    fetched_packages: tuple[str, ...] = ()
    """Debian packages that such a system's machines need for a fetched broker, instead of ``packages``."""

    def fetched_version(self, options: Mapping[str, Any]) -> Fetched | None:
        """Return the version that a test needs; None if it needs none, because the user names a program, or no version
        of a packaged system.

        Raises:
            UsageError: the option ``version`` can't be a version, or goes with ``program``.
        """
        given = str(options.get(VERSION, ""))
        if not self.fetched or (self.packaged and not given):
            return None
        wanted = Fetched(self.fetched, given)
        if not options.get(PROGRAM):
            return wanted
        if self.packaged or wanted.version != wanted.recipe.version:
            raise UsageError(f"--set {VERSION}={wanted.version} does not go with --set {PROGRAM}")
        return None

    def check(self, test: Test, demands: Demands) -> None:
        """Check the version."""
        self.fetched_version(test.options)

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Return the machines; a fetched broker replaces ``packages`` by ``fetched_packages``."""
        found = super().topology(test, demands)
        replaced = self.packaged and self.fetched_version(test.options) is not None
        return replace(found, packages=self.fetched_packages) if replaced else found

    def bring(self, test: Test, tell: Teller, show: Teller) -> None:
        """Bring the broker to this machine, unless it is there; ``tell`` and ``show`` are those of ``fetch``.

        Raises:
            StormproofError: it can't be brought.
        """
        wanted = self.fetched_version(test.options)
        if wanted is None:
            return
        if not wanted.is_pinned and wanted.is_there():
            tell(f"{wanted} is not pinned: the project has no checksums of it")
        fetch(wanted, tell, show)

    def folders(self, test: Test) -> Mapping[str, str]:
        """Return the folders of this machine that the test's machines need, to read: name -> path."""
        wanted = self.fetched_version(test.options)
        return {} if wanted is None else {wanted.name: str(wanted.path)}
