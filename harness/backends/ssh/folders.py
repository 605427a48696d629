"""Folders of this machine on hosts over SSH: copied once, into a folder named after the content's hash."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import shlex
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from harness.backends.base import ShellBackend, gather_all
from harness.backends.ssh.facts import STATE
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

UNPACK_SECONDS = 120.0 * TIMEOUT_FACTOR
"""The time for unpacking a broker (some 100 MB) on a slow host."""


def copy_path(name: str, path: str) -> str:
    """Return the path of a folder's copy on a host.

    Raises:
        BackendError: the folder does not exist, or can't be read.
    """
    return f"{STATE}/folders/{name}-{hashlib.sha256(_archive(path)).hexdigest()[:16]}"


async def copy_folders(backend: ShellBackend, nodes: Sequence[str], folders: Sequence[tuple[str, str]]) -> None:
    """Copy folders to the hosts that do not have them.

    Raises:
        BackendError: a folder can't be read, or a host can't take it.
    """
    for name, path in folders:
        place = await asyncio.to_thread(copy_path, name, path)
        await gather_all(_copy(backend, node, place, path) for node in nodes)


async def _copy(backend: ShellBackend, node: str, place: str, path: str) -> None:
    """Copy to one host. Another run may be doing the same there: a complete folder appears by a rename."""
    if not (await backend.exec(node, f"[ -d {shlex.quote(place)} ]")).status:
        return
    part = f"{place}.{secrets.token_hex(4)}.part"
    archive, target, final = (shlex.quote(each) for each in (f"{part}.tar", part, place))
    await backend.upload(node, _archive(path), f"{part}.tar")
    done = await backend.exec(node, f"mkdir -p {target} && tar -xf {archive} -C {target} --no-same-owner && "
                              f"{{ mv -T {target} {final} 2>/dev/null || [ -d {final} ]; }}; status=$?; "
                              f"rm -rf {target} {archive}; exit $status", UNPACK_SECONDS)  # fmt: skip
    if done.status:
        raise BackendError(f"{node}: can't copy {path} there: {' '.join(done.output.split())[-300:]}")


@lru_cache(maxsize=1)
def _archive(path: str) -> bytes:
    """Return a folder as a tar archive; equal content gives equal bytes."""
    buffer = io.BytesIO()
    root = Path(path)
    if not root.is_dir():
        raise BackendError(f"{path} does not exist")
    try:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for file in sorted(each for each in root.rglob("*") if each.is_file() and not each.is_symlink()):
                entry = tarfile.TarInfo(str(file.relative_to(root)))
                entry.size, entry.mode = file.stat().st_size, 0o755 if file.stat().st_mode & 0o100 else 0o644
                with file.open("rb") as content:
                    archive.addfile(entry, content)
    except OSError as error:
        raise BackendError(f"{path} can't be read: {error.strerror or error}") from error
    return buffer.getvalue()
