"""Disks of a project's machines that can fail: FUSE file systems of this machine in place of the services' volumes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import docker
from docker.errors import DockerException

from harness.backends import disk_machines
from harness.backends.compose import settings
from harness.backends.compose.adapt import disks_of, scale_of, without_disk
from harness.backends.compose.containers import Containers, to_its_end
from harness.backends.disk_control import mount_here
from harness.backends.disk_machines import DiskBackend
from harness.backends.disk_store import TAKE_NAME
from nemesis.families import abilities_needed
from stormproof.contracts.backend import DISKS, POWER, CommandResult, DiskFault
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.resource_log import OwnFolder
from stormproof.test import Test

_COMMAND_SECONDS = 60.0


class ComposeDisks(DiskBackend):
    """The part of the backend that handles disks and power."""

    def __init__(self) -> None:
        super().__init__()
        self._client: docker.DockerClient | None = None
        self._composition: settings.Composition | None = None
        self._containers: Containers | None = None
        self._scratch: OwnFolder | None = None
        self._labels: dict[str, str] = {}
        self._policies: dict[str, Mapping[str, Any]] = {}
        """Restart policies of machines without power, which get them back with it."""

    @property
    def containers(self) -> Containers:
        """The project's containers. Raises BackendError before Compose has created them."""
        if self._containers is None:
            raise BackendError("Compose has created no containers yet")
        return self._containers

    @property
    def composition(self) -> settings.Composition:
        """The project."""
        assert self._composition is not None
        return self._composition

    def data_dir(self, node: str) -> str:
        """Return the folder of the first of the machine's volumes, as the container sees it."""
        disks = disks_of(self.composition.config, self.composition.machine(node).service)
        return disks[0].path if disks else "/"

    async def writes_to(self, node: str) -> tuple[str, ...]:
        """List the folders of a container, besides its volumes, where its processes have files open for writing."""
        state = await self.containers.state(node)
        volumes = [disk.path for disk in disks_of(self.composition.config, self.composition.machine(node).service)]
        found = await asyncio.to_thread(_open_for_writing, state.pid) if state.pid else set()
        folders = {str(PurePosixPath(path).parent) for path in found}
        return tuple(sorted(folder for folder in folders if not any(_inside(folder, each) for each in volumes)))

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut these machines' power; Docker does not start them again until it is back."""
        for node in nodes:
            if node not in self._policies:
                self._policies[node] = await self.containers.set_restarts(node, {"Name": "no"})
        await super().power_off(nodes)

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Restore these machines' power; their containers are not started."""
        await super().power_on(nodes)
        for node in nodes:
            if node in self._policies:
                await self.containers.set_restarts(node, self._policies.pop(node))

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        """Set the fault of a machine's disk; an empty disk gets what the image has in the volumes' folders, as a new
        volume does, since a container without these folders can't start."""
        await super().set_disk(node, fault)
        if fault is not None and fault.kind == "empty":
            for number, _ in enumerate(self._mounts_of(node)):
                self._kept(node, number).mkdir(exist_ok=True)
            await self._fill_disk(node)

    @staticmethod
    def cannot(test: Test, topology: Topology) -> str:
        """Return why such a test is impossible: a replica has no disk that can fail, though a fault needs one."""
        if not ({DISKS, POWER} & abilities_needed(test, disk_machines.ABILITIES)):
            return ""
        composition, asked = settings.composition_of(test.options), f"--nemesis {','.join(test.nemesis)}"
        for name in topology.nodes:
            service = composition.machine(name).service
            if scale_of(composition.config["services"][service]) != 1:
                return f"{asked}: service {service} has several containers, whose volumes can't be told apart; write " \
                       "one service for each replica"
            if why := without_disk(composition.config, service):
                return f"{asked}: {why}"
        return ""

    async def _make_disks(self, test: Test, composition: settings.Composition) -> None:
        assert self._scratch is not None
        for name in test.node_names:
            service = composition.machine(name).service
            if why := without_disk(composition.config, service):
                raise UsageError(f"--nemesis {','.join(test.nemesis)}: {why}")
            folder = self._scratch.path / name
            (folder / "data").mkdir(parents=True)
            for number, _ in enumerate(disks_of(composition.config, service)):
                self._kept(name, number).mkdir(parents=True)
            seed = disk_machines.seed_of(test, name)
            self._disks[name] = await mount_here(name, folder / "data", folder / "kept", seed)

    def _mounts_of(self, machine: str) -> list[tuple[str, str]]:
        """Return the pairs of a folder on the machine's disk and the container's folder."""
        disks = disks_of(self.composition.config, self.composition.machine(machine).service)
        return [(f"{self._disk_folder(machine)}/{number}", disk.path) for number, disk in enumerate(disks)]

    async def _fill_disk(self, machine: str) -> None:
        """Copy what the image has in the volumes' folders, with owners and modes, as Docker does for a new volume.

        It is written behind the mount: it is on the disk already, and counts as no write of the broker's.
        """
        for number, (_, path) in enumerate(self._mounts_of(machine)):
            await to_its_end(self.containers.call(self._copy_from_image, machine, self._kept(machine, number), path))

    def _kept(self, machine: str, number: int) -> Path:
        """Return the folder behind the mount that stores a volume's content."""
        assert self._scratch is not None
        return self._scratch.path / machine / "kept" / "files" / str(number)

    def _copy_from_image(self, machine: str, folder: Path, path: str) -> None:
        assert self._client is not None
        api = self._client.api
        image = api.inspect_container(self.containers.ident(machine))["Image"]
        made = api.create_container(image, command=["true"], labels=self._labels)
        try:
            stream, _ = api.get_archive(made["Id"], f"{path}/.")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                tar.extraction_filter = lambda member, path: member  # owners, modes and links as they are
                tar.extractall(folder, numeric_owner=True)
        except DockerException:
            return  # the image has no such folder
        finally:
            api.remove_container(made["Id"], v=True, force=True)

    async def _any_runs(self, node: str) -> bool:
        return (await self.containers.state(node)).pid is not None

    async def _end_all(self, node: str) -> None:
        await self.containers.kill(node)

    def _disk_folder(self, node: str) -> str:
        assert self._scratch is not None
        return str(self._scratch.path / node / "data")

    async def _at_disk(self, node: str, script: str) -> CommandResult:
        """Run a command on this machine, where the disk is mounted."""
        marked = f"{TAKE_NAME}; {script}"  # what it writes is not the broker's
        done = await asyncio.to_thread(subprocess.run, ["sh", "-c", marked], capture_output=True, text=True,
                                       timeout=_COMMAND_SECONDS, check=False, start_new_session=True)  # fmt: skip
        return CommandResult(done.returncode, done.stdout + done.stderr)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _open_for_writing(first: int) -> set[str]:
    """Return the regular files that the processes of a container have open for writing, as the container sees them."""
    found: set[str] = set()
    try:
        namespace = str(Path(f"/proc/{first}/ns/pid").readlink())
    except OSError:
        return found
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if str((process / "ns/pid").readlink()) != namespace:
                continue
            for handle in (process / "fd").iterdir():
                flags = next(line.split()[1] for line in (process / "fdinfo" / handle.name).read_text().splitlines()
                             if line.startswith("flags:"))  # fmt: skip
                path = str(handle.readlink())
                if int(flags, 8) & 3 and path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                    found.add(path)
    return found
