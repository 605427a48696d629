"""The containers of one run of a project, through Docker's API: their state, signals, commands and files."""

from __future__ import annotations

import asyncio
import io
import math
import os
import signal
import socket
import tarfile
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ParamSpec, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound

from harness.backends.compose.adapt import Machine
from harness.backends.docker_leftovers import reason_of
from stormproof.contracts.backend import (
    DEAD,
    DONE,
    PAUSED,
    RUNNING,
    SIGKILL,
    SIGTERM,
    CommandResult,
    ProcessState,
    Usage,
)
from stormproof.errors import BackendError

P = ParamSpec("P")
R = TypeVar("R")

POLL_SECONDS = 0.05
END_SECONDS = 10.0
"""A killed container is gone within a second; Docker's engine may be busy."""
LABEL_PROJECT, LABEL_SERVICE, LABEL_NUMBER = (
    f"com.docker.compose.{name}" for name in ("project", "service", "container-number"))
"""Labels that both versions of Compose give; names of containers differ between them."""
_LOG_LINES = 200_000
_KILLED = 128 + signal.SIGKILL
"""The exit status of a container that SIGKILL ended."""
_RUNNING_STATES = ("running", "paused", "restarting")


class Containers:
    """Containers by the machine's name. Methods that take long run in threads."""

    def __init__(self, client: docker.DockerClient, project: str, machines: Sequence[Machine],
                 may_end: Collection[str]) -> None:
        """``may_end`` are the machines that may have ended by themselves, with status 0: jobs."""
        self._client, self._project, self._may_end = client, project, frozenset(may_end)
        self._machines = {(machine.service, machine.number): machine.name for machine in machines}
        self._ids: dict[str, str] = {}

    async def find(self) -> None:
        """Look the containers up by Compose's labels."""
        found = await self.call(self._client.api.containers, all=True,
                                filters={"label": f"{LABEL_PROJECT}={self._project}"})
        for each in found:
            labels = each["Labels"]
            number = int(labels.get(LABEL_NUMBER) or 1)
            name = self._machines.get((labels.get(LABEL_SERVICE), number))
            if name is not None:
                self._ids[name] = each["Id"]

    def ident(self, machine: str) -> str:
        """Return a container's id; raise BackendError where the project has none."""
        try:
            return self._ids[machine]
        except KeyError:
            raise BackendError(f"{machine}: Compose has created no container for it") from None

    async def inspect(self, machine: str) -> Mapping[str, Any]:
        """Return Docker's description of a container."""
        found: Mapping[str, Any] = await self.call(self._client.api.inspect_container, self.ident(machine))
        return found

    async def state(self, machine: str) -> ProcessState:
        """Return the state of a container's first process; its id is the one on this machine."""
        state = (await self.inspect(machine))["State"]
        if not state["Pid"] or state["Status"] not in _RUNNING_STATES or state.get("Restarting"):
            ended_well = state["Status"] == "exited" and state["ExitCode"] == 0
            return ProcessState(DONE if ended_well and machine in self._may_end else DEAD)
        return ProcessState(PAUSED if state["Paused"] else RUNNING, int(state["Pid"]), str(state["StartedAt"]))

    async def exit_status(self, machine: str) -> int | None:
        """Return the status with which a container has ended; None while it runs, or before its start."""
        state = (await self.inspect(machine))["State"]
        return int(state["ExitCode"]) if state["Status"] == "exited" else None

    async def kill(self, machine: str) -> None:
        """End a container as a crash does: its first process gets SIGKILL, and all others end with its namespace.

        Docker's own ``kill`` is another thing: it turns the restart policy off.
        """
        before = await self.state(machine)
        if before.pid is None:
            return
        if before.state == PAUSED:  # a frozen process does not die
            await self.resume(machine)
        os.kill(before.pid, signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        while (now := await self.state(machine)).pid == before.pid and now.born == before.born:
            if time.monotonic() > deadline:
                raise BackendError(f"{machine}: its container outlived SIGKILL")
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, machine: str, seconds: float) -> str:
        """End a container with SIGTERM, then with SIGKILL; return the signal that ended it, or an empty text if it did
        not run. Its restart policy does not start it again."""
        before = await self.inspect(machine)
        if not before["State"]["Running"]:
            return ""
        await self.call(self._client.api.stop, self.ident(machine), timeout=math.ceil(seconds))
        killed = (await self.inspect(machine))["State"]["ExitCode"] == _KILLED
        return SIGKILL if killed else str(before["Config"].get("StopSignal") or SIGTERM)

    async def start(self, machine: str) -> None:
        """Start a container that is down; one that runs is left alone."""
        await self.call(self._client.api.start, self.ident(machine))

    async def pause(self, machine: str) -> None:
        """Freeze all processes of a container."""
        await self.call(self._client.api.pause, self.ident(machine))

    async def resume(self, machine: str) -> None:
        """Let the processes of a frozen container continue."""
        await self.call(self._client.api.unpause, self.ident(machine))

    async def restarts(self, machine: str) -> bool:
        """Return whether Docker starts the container again after a crash."""
        policy = (await self.inspect(machine))["HostConfig"].get("RestartPolicy") or {}
        return policy.get("Name") in ("always", "unless-stopped", "on-failure")

    async def set_restarts(self, machine: str, policy: Any) -> Any:
        """Set a container's restart policy, and return the one before."""
        before = (await self.inspect(machine))["HostConfig"].get("RestartPolicy") or {"Name": "no"}
        await self.call(self._client.api.update_container, self.ident(machine), restart_policy=policy)
        return dict(before)

    async def run(self, machine: str, command: str, seconds: float, *, environment: Mapping[str, str] | None = None
                  ) -> CommandResult:
        """Run a command in a container: by its shell, or, where it has none, split into words.

        Raises:
            BackendError: it does not end in time, or the container does not run.
        """
        def run() -> CommandResult:
            api = self._client.api
            made = api.exec_create(self.ident(machine), argv, environment=dict(environment or {}))
            output = api.exec_start(made["Id"])
            return CommandResult(api.exec_inspect(made["Id"])["ExitCode"] or 0, output.decode("utf-8", "replace"))

        argv: list[str] | str = ["sh", "-c", command]
        try:
            async with asyncio.timeout(seconds):
                done = await self.call(run)
                if done.status in (126, 127) and "sh" in done.output and "exec" in done.output:
                    argv = command
                    done = await self.call(run)
        except TimeoutError:
            program = command.split()[0] if command.split() else "a command"  # its words may hold a password
            raise BackendError(f"{machine}: {program} did not end within {seconds:g} s") from None
        return done

    async def log(self, machine: str) -> bytes:
        """Return the end of a container's output, each line with its time."""
        found: bytes = await self.call(self._client.api.logs, self.ident(machine), timestamps=True, tail=_LOG_LINES)
        return found

    async def read(self, machine: str, path: str) -> bytes:
        """Return a file of a container; raise BackendError where it is missing."""
        def read() -> bytes:
            stream, _ = self._client.api.get_archive(self.ident(machine), path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                member = next((each for each in tar if each.isfile()), None)
                file = tar.extractfile(member) if member is not None else None
                if file is None:
                    raise BackendError(f"{machine}: {path} is no file")
                return file.read()

        return await self.call(read)

    async def write(self, machine: str, content: bytes, path: str) -> None:
        """Write a file in a container; its folder must exist."""
        place = PurePosixPath(path)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(place.name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
            tar.addfile(entry, io.BytesIO(content))
        await self.call(self._client.api.put_archive, self.ident(machine), str(place.parent), archive.getvalue())

    async def images(self) -> dict[str, str]:
        """Return the digest of each machine's image."""
        return {machine: str((await self.inspect(machine))["Image"]) for machine in self._ids}

    async def addresses(self, machine: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a container's present IPv4 and IPv6 addresses, in the order of its networks' names."""
        return addresses_in(await self.inspect(machine))

    async def usage(self, machine: str, began: Mapping[str, Any] | None) -> tuple[Usage, Mapping[str, Any]]:
        """Return a container's use of resources since ``began``, the second result of an earlier call."""
        now = await self.call(self._client.api.stats, self.ident(machine), stream=False, one_shot=True)
        first = began or now

        def since(*path: str) -> int:
            return max(0, _figure(now, path) - _figure(first, path))

        received, sent = (sum(int(each[name]) for each in (now.get("networks") or {}).values())
                          - sum(int(each[name]) for each in (first.get("networks") or {}).values())
                          for name in ("rx_bytes", "tx_bytes"))  # fmt: skip
        read, written = (_blocks(now, name) - _blocks(first, name) for name in ("read", "write"))
        return Usage(
            since("cpu_stats", "cpu_usage", "total_usage") / 1e9, _figure(now, ("memory_stats", "usage")), None,
            max(0, read), max(0, written), max(0, received), max(0, sent), _figure(now, ("pids_stats", "current")), 0.0,
        ), first  # fmt: skip

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking call of Docker's API in a thread.

        Raises:
            BackendError: Docker refused.
        """
        try:
            return await asyncio.to_thread(function, *args, **kwargs)
        except NotFound as error:
            raise BackendError(f"Docker: {reason_of(error)}") from None
        except APIError as error:
            raise BackendError(f"Docker refused: {reason_of(error)}") from None
        except DockerException as error:
            raise BackendError(f"Docker failed: {reason_of(error)}") from None


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Return the result of ``work``. If the caller is cancelled, wait for its end first, because a thread continues to
    create objects after their removal otherwise."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=END_SECONDS)
        raise


def addresses_in(found: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the IPv4 and IPv6 addresses in Docker's description of a container, in the order of networks' names."""
    networks = found["NetworkSettings"]["Networks"]
    ordered = [networks[name] for name in sorted(networks)]
    return (tuple(each["IPAddress"] for each in ordered if each.get("IPAddress")),
            tuple(each["GlobalIPv6Address"] for each in ordered if each.get("GlobalIPv6Address")))


def interface_names(indexes: Sequence[int]) -> frozenset[str]:
    """Return the names of this machine's interfaces with these numbers."""
    names = dict(socket.if_nameindex())
    return frozenset(names[index] for index in indexes if index in names)


def _figure(found: Mapping[str, Any], path: Sequence[str]) -> int:
    for name in path:
        found = found.get(name) or {}
    return int(found) if isinstance(found, int | float) else 0


def _blocks(found: Mapping[str, Any], what: str) -> int:
    entries = (found.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
    return sum(int(each["value"]) for each in entries if str(each["op"]).lower() == what)
