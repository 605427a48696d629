"""The code of the reference broker, as it is installed on nodes: complete, in a folder named after its hash."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import secrets
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path

import nodes
from stormproof.contracts.backend import Backend, Shells
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

OWN = Path(nodes.__file__).parent
"""The package ``nodes`` of this program; other versions are in other folders."""


@functools.cache
def node_files(root: Path = OWN) -> Mapping[str, bytes]:
    """Return the code that runs on a node: paths and contents."""
    files = [*sorted(root.glob("*.py")), *sorted((root / "reference").rglob("*.py"))]
    return {str(Path("nodes") / file.relative_to(root)): file.read_bytes() for file in files}


def node_archive(root: Path = OWN) -> bytes:
    """Return the code that runs on a node, as a zip file; equal code gives equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in node_files(root).items():
            archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def node_hashes(root: Path = OWN) -> str:
    """Return the SHA-256 of each file of the code, in the format of sha256sum(1)."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in node_files(root).items())


def is_whole(code: str, root: Path = OWN) -> str:
    """Return a shell command that succeeds if the folder ``code`` on a node contains exactly this code."""
    return f"(cd {shlex.quote(code)} 2>/dev/null && sha256sum --check --status <<'END'\n{node_hashes(root)}END\n)"


def code_folder(shells: Shells, node: str, root: Path = OWN) -> str:
    """Return the folder of the broker's code on a node, which is named after the hash of its content."""
    return f"{shells.code_dir(node)}/{hashlib.sha256(node_hashes(root).encode()).hexdigest()[:16]}"


# A folder's name may contain a colon, which would end a folder in PYTHONPATH.
_BEGIN = ("import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
          "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)")


def module_command(shells: Shells, node: str, module: str, *arguments: str, root: Path = OWN) -> list[str]:
    """Return the command that runs a module of this code on a node."""
    return [shells.python(node), "-P", "-u", "-c", _BEGIN, code_folder(shells, node, root), module, *arguments]


async def install_code(backend: Backend, machines: tuple[str, ...], root: Path = OWN) -> None:
    """Install the code on machines that don't have it.

    Raises:
        BackendError: a machine has no usable Python, or refused the files.
    """
    archive = node_archive(root)
    await asyncio.gather(*(_install(backend, machine, archive, root) for machine in machines))


async def _install(backend: Backend, machine: str, archive: bytes, root: Path) -> None:
    assert isinstance(backend, Shells)
    code, packed = code_folder(backend, machine, root), f"{backend.node_dir(machine)}/code.zip"
    if not (await backend.exec(machine, is_whole(code, root))).status:
        return
    await backend.upload(machine, archive, packed)
    whole, python = is_whole(code, root), shlex.quote(backend.python(machine))
    zipped, part, place = (shlex.quote(path) for path in (packed, f"{code}.{secrets.token_hex(4)}.part", code))
    # Another run may be doing the same on this host: a complete folder stays.
    result = await backend.exec(
        machine, f"{python} -m zipfile -e {zipped} {part} && {{ mv -T {part} {place} 2>/dev/null; "
        f"{whole} || {{ rm -rf {place}; mv -T {part} {place}; }}; }}; rm -rf {part}; {whole}",
        timeout=30 * TIMEOUT_FACTOR,
    )  # fmt: skip
    if result.status:
        raise BackendError(f"{machine}: can't unpack the broker with {python}: {result.output.strip()[-300:]}")
