"""Bringing a broker: by the client of its registry, checked, and put into the user's cache as a whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from stormproof.errors import StormproofError
from stormproof.fetch import golang, maven
from stormproof.fetch.client_process import FULL, OLD, UNKNOWN, UNREACHABLE, WRONG, ClientFailed
from stormproof.fetch.clients import CLIENTS, needed
from stormproof.fetch.fetched import PART, Fetched, write_manifest
from stormproof.fetch.recipes import GO
from stormproof.text import printable

Teller = Callable[[str], None]
"""Takes a line for people."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch(wanted: Fetched, tell: Teller, show: Teller) -> dict[str, str]:
    """Bring a version unless it is there. ``tell`` gets lines to keep, ``show`` lines about the progress. Return the
    checksums that the client's files have; empty if the version was there.

    The folder is complete or absent. Two fetches of one version wait for each other.

    Raises:
        StormproofError: the client is missing or too old, its registry can't be reached, a checksum is wrong, the disk
            is full; nothing was installed. KeyboardInterrupt: likewise; the client has ended.
    """
    if wanted.is_there():
        return {}
    program = client_of(wanted)
    path = wanted.path
    draft = path.with_name(f".{wanted.version}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(wanted, path.with_name(f".{wanted.version}.lock"), tell) as lock:
            if wanted.is_there():
                return {}
            _remove(draft)  # of a fetch that was killed
            draft.mkdir()
            try:
                return _fill(wanted, draft, program, tell, show, lock)
            finally:
                _remove(draft)
    except ClientFailed as failed:
        raise StormproofError(_explained(wanted, failed)) from failed
    except OSError as error:
        if error.errno in _FULL:
            raise StormproofError(_full(wanted, path.parent)) from error
        raise StormproofError(f"{wanted} can't be put into {path.parent}: {error.strerror or error}; nothing was "
                              "installed") from error


def client_of(wanted: Fetched) -> str:
    """Return the path of the client that brings a version: from PATH, or installed beside this Python.

    Raises:
        StormproofError: it is missing or too old; the message names the command that installs it.
    """
    client = CLIENTS[wanted.recipe.client]
    if trouble := client.trouble(needed(wanted.recipe, wanted.version)):
        raise StormproofError(f"{wanted} comes by {client.program}: {trouble}; run: {client.install}")
    found = client.find()
    assert found is not None
    return found


def _fill(wanted: Fetched, draft: Path, program: str, tell: Teller, show: Teller, lock: int) -> dict[str, str]:
    pinned = wanted.is_pinned
    tell(f"fetching {wanted} by {wanted.recipe.client}"
         + ("" if pinned else ": this version is not pinned, so the project has no checksums of it"))
    bring = golang.bring if wanted.recipe.client == GO else maven.bring
    found = bring(wanted, draft, program, show, lock)
    show("writing it to disk")
    write_manifest(draft, wanted)
    if wanted.path.exists():  # checked against older checksums, or damaged
        _remove(wanted.path)
    draft.rename(wanted.path)
    return found


@contextlib.contextmanager
def _locked(wanted: Fetched, path: Path, tell: Teller) -> Iterator[int]:
    """Hold the lock of a version; yield its descriptor."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"another process is fetching {wanted}; waiting for it")
            _wait(file)
        yield file.fileno()


def _wait(file: IO[str]) -> None:
    fcntl.flock(file, fcntl.LOCK_EX)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _full(wanted: Fetched, place: Path) -> str:
    return f"{wanted}: the disk is full ({place}, or a folder of {wanted.recipe.client}'s own); nothing was installed"


def _explained(wanted: Fetched, failed: ClientFailed) -> str:
    client = wanted.recipe.client
    line = printable(failed.line, 300)
    match failed.meaning:
        case meaning if meaning == FULL:
            return _full(wanted, wanted.path.parent)
        case meaning if meaning == WRONG:
            return f"{wanted}: wrong checksum, says {client}; nothing was installed: {line}"
        case meaning if meaning == OLD:
            return f"{wanted}: {client} is too old; run: {CLIENTS[client].install} ({line})"
        case meaning if meaning == UNREACHABLE:
            return f"{wanted}: {client} can't reach its registry; nothing was installed: {line}"
        case meaning if meaning == UNKNOWN:
            return f"{wanted}: {client} does not find this version; nothing was installed: {line}"
    return f"{wanted}: {failed}; nothing was installed"
