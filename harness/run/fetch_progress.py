"""Bringing a test's broker before its machines are made, with progress on the screen."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from harness.backends.catalog import BACKENDS
from harness.run.deployment import topology_of
from harness.run.progress import console, duration
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import Attached
from stormproof.contracts.brought_folders import BringsFolders
from stormproof.errors import UsageError
from stormproof.fetch.fetching import Teller
from stormproof.fetch.systems import FetchingSystem
from stormproof.test import Test
from stormproof.text import escaped

PLAIN_SECONDS = 10.0
"""The pause between two lines of progress in a log."""


def bring_broker(test: Test, quiet: bool) -> None:
    """Bring the fetched broker of a test's system, if it has one. ``quiet`` keeps standard output free.

    Raises:
        StormproofError: it can't be brought. UsageError: the backend can't give its machines a folder.
    """
    system, backend = SYSTEMS.load(test.system), BACKENDS.load(test.backend)
    if not isinstance(system, FetchingSystem) or backend.in_process or issubclass(backend, Attached):
        return
    if topology_of(test).folders and not issubclass(backend, BringsFolders):
        raise UsageError(f"--backend {test.backend}: it can't give its machines the fetched {system.fetched}; choose "
                         "local, docker or ssh")
    with fetch_progress(quiet) as (tell, show):
        system.bring(test, tell, show)


@contextlib.contextmanager
def fetch_progress(quiet: bool) -> Iterator[tuple[Teller, Teller]]:
    """Yield a function for lines to keep, and one for lines about the progress of a client: a live line on a terminal,
    a line each ``PLAIN_SECONDS`` in a log."""
    to, start = console(quiet), time.monotonic()
    if to.is_terminal:
        with to.status("", spinner="dots") as status:
            yield (lambda line: status.console.print(escaped(line), markup=False),
                   lambda line: status.update(f"{duration(time.monotonic() - start)}  {_markup_free(brief(line))}"))
        return
    stream, last = sys.stderr if quiet else sys.stdout, start

    def show(line: str) -> None:
        nonlocal last
        if (text := brief(line)) and time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            print(f"  {duration(last - start)}  {escaped(text)}", file=stream, flush=True)

    yield lambda line: print(escaped(line), file=stream, flush=True), show


def brief(line: str) -> str:
    """Return a client's line without marks and addresses: the file that comes rather than its URL."""
    words = line.removeprefix("[INFO]").split()
    return " ".join(word.rpartition("/")[2] if "://" in word else word for word in words)[:120]


def _markup_free(line: str) -> str:
    return escaped(line).replace("[", r"\[")
