"""The image of Docker nodes, and the two ways to build it.

If Docker can reach its registry, the image is built from ``nodes/image/Dockerfile``. Otherwise it is built from
Debian's or Ubuntu's packages, through mmdebstrap and the mirror that this machine's apt uses. Its tag is the hash of
the recipe, so a changed recipe results in a new image.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import BuildError, DockerException, ImageNotFound

from stormproof.errors import BackendError

RECIPE = Path(__file__).resolve().parents[2] / "nodes" / "image"
BASE = "debian:bookworm-slim"
REPOSITORY = "stormproof-node"
BUILD_LIMIT_S = 600

_MIRROR_SUITE = "bookworm"
# Releases of Debian and Ubuntu whose Python is too old for the broker's code.
_SUITES_TOO_OLD = frozenset({"buster", "bullseye", "bionic", "focal", "jammy"})
_SLIM = "path-exclude=/usr/share/{doc,man,locale,info}/*"


def image_tag(packages: Sequence[str] = ()) -> str:
    """Return ``stormproof-node:<hash of the recipe and of the further packages>``."""
    recipe = b"".join(path.read_bytes() for path in sorted(RECIPE.iterdir()) if path.is_file())
    recipe += "".join(f" {package}" for package in sorted(packages)).encode()
    return f"{REPOSITORY}:{hashlib.sha256(recipe).hexdigest()[:12]}"


def has_image(client: docker.DockerClient, packages: Sequence[str] = ()) -> bool:
    """Return whether the image exists already; raises DockerException when the daemon does not answer."""
    try:
        client.images.get(image_tag(packages))
    except ImageNotFound:
        return False
    return True


def registry_answers(client: docker.DockerClient) -> bool:
    """Return whether the base image is present or the daemon can reach the registry that has it."""
    try:
        client.images.get(BASE)
        return True
    except ImageNotFound:
        pass
    try:
        client.images.get_registry_data(BASE)
    except DockerException:
        return False
    return True


def ensure_image(client: docker.DockerClient, packages: Sequence[str] = ()) -> tuple[str, str]:
    """Build the image if it is missing; return its tag and its origin (``present``, ``built from the Dockerfile...``).

    Each set of further Debian packages has a separate image. Blocks, for up to minutes when it must build.

    Raises:
        BackendError: it cannot be built here; the message gives both reasons and a remedy.
    """
    tag = image_tag(packages)
    if has_image(client, packages):
        return tag, "present"
    reasons = []
    for build in (_from_dockerfile, _from_packages):
        try:
            return tag, build(client, tag, packages)
        except BackendError as error:
            reasons.append(str(error))
    raise BackendError(f"can't build image {tag}: {'; '.join(reasons)}; use --backend local, or load the image")


def _from_dockerfile(client: docker.DockerClient, tag: str, packages: Sequence[str]) -> str:
    if not registry_answers(client):
        raise BackendError("Docker can't reach its registry")
    try:
        client.images.build(path=str(RECIPE), tag=tag, rm=True, forcerm=True, timeout=BUILD_LIMIT_S,
                            buildargs={"PACKAGES": " ".join(sorted(packages))})
    except (BuildError, DockerException) as error:
        raise BackendError(f"docker build {RECIPE} failed: {_one_line(str(error))}") from None
    return f"built from the Dockerfile on {BASE}"


def _from_packages(client: docker.DockerClient, tag: str, packages: Sequence[str]) -> str:
    if not shutil.which("mmdebstrap"):
        raise BackendError("mmdebstrap is not installed (run: apt-get install mmdebstrap)")
    wanted = ",".join([*(RECIPE / "packages.txt").read_text().split(), *sorted(packages)])
    source = apt_source()
    command = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={wanted}", f"--dpkgopt={_SLIM}",
               source.suite, "-", *source.mirrors]
    repository, _, version = tag.partition(":")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        try:
            client.api.import_image_from_stream(process.stdout, repository=repository, tag=version)
            status = process.wait(BUILD_LIMIT_S)
        except DockerException as error:
            raise BackendError(f"docker import failed: {_one_line(str(error))}") from None
        finally:
            process.stdout.close()
            process.kill()
            process.wait()
        errors.seek(0)
        if status != 0:
            client.api.remove_image(tag, force=True)  # Remove the remains of a broken archive.
            raise BackendError(f"mmdebstrap failed: {_one_line(errors.read().decode(errors='replace'))}")
    return f"built from {source.suite}'s packages by mmdebstrap"


@dataclass(frozen=True)
class AptSource:
    """A release and its mirrors; no mirror means mmdebstrap's default."""

    suite: str
    mirrors: tuple[str, ...] = ()


def apt_source(root: Path = Path("/")) -> AptSource:
    """Return this machine's release and mirror if the release is recent enough, otherwise Debian's default."""
    try:
        suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        suite = ""
    if not suite or suite in _SUITES_TOO_OLD:
        return AptSource(_MIRROR_SUITE)
    folder = root / "etc/apt"
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    texts = [path.read_text(errors="replace") for path in files if path.is_file()]
    mirrors = tuple(dict.fromkeys(mirror for text in texts for mirror in _mirrors(text, suite)))
    return AptSource(suite, mirrors[:1]) if mirrors else AptSource(_MIRROR_SUITE)


def _mirrors(text: str, suite: str) -> Iterator[str]:
    """Yield the URIs that offer the suite's ``main``, in one-line or deb822 format (sources.list(5))."""
    for line in text.splitlines():
        if match := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line):
            uri, offered, components = match.groups()
            if offered == suite and "main" in components.split():
                yield uri
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        offered_all = fields.get("Suites", "").split()
        if suite in offered_all and "main" in fields.get("Components", "").split() and fields.get("Enabled") != "no":
            yield from fields.get("URIs", "").split()


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else "..." + line[-limit:]


def main(packages: Sequence[str]) -> int:
    """``python -m harness.backends.image [PACKAGE...]``: build the image ahead of its first use, and print its tag."""
    try:
        client = docker.from_env(timeout=BUILD_LIMIT_S)
        if not has_image(client, packages):
            print(f"building the image of nodes {image_tag(packages)} (minutes, once)", file=sys.stderr)
        print(ensure_image(client, packages)[0])
    except (DockerException, BackendError) as error:
        print(_one_line(str(error)), file=sys.stderr)
        return 1
    return 0


__all__: Sequence[str] = ("BASE", "AptSource", "apt_source", "ensure_image", "has_image", "image_tag",
                          "registry_answers")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
