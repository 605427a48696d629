"""Systems whose brokers are fetched: the version of a test, and its folder on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.option import Option
from stormproof.contracts.system import System
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


def version_option(name: str) -> Option:
    """Return the option for a system whose broker is fetched under this name."""
    return Option(VERSION, recipe(name).version, f"version that `stormproof fetch {name}` brings")


class FetchingSystem(System):
    """A system that may have a broker in the user's cache."""

    fetched: str = ""
    """The name by which `stormproof fetch` brings the broker (``stormproof/fetch/recipes.toml``); empty: it comes by
    other ways. Its folder on a machine is ``machine.fetched``."""

    def fetched_version(self, options: Mapping[str, Any]) -> Fetched | None:
        """Return the version that a test needs; None if it needs none, because the user names a program.

        Raises:
            UsageError: the option ``version`` can't be a version, or goes with ``program``.
        """
        if not self.fetched:
            return None
        wanted = Fetched(self.fetched, str(options.get(VERSION, "")))
        if not options.get(PROGRAM):
            return wanted
        if wanted.version != wanted.recipe.version:
            raise UsageError(f"--set {VERSION}={wanted.version} does not go with --set {PROGRAM}")
        return None

    def check(self, test: Test, demands: Demands) -> None:
        """Check the version."""
        self.fetched_version(test.options)

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
