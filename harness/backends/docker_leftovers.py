"""Labels of what a run makes in Docker's engine, and the removal of what dead runs left there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from stormproof.process_owner import Leftover, Owner
from stormproof.resource_log import owner_of
from stormproof.run_folder import LOCK_FILE

LABEL_RUN = "stormproof.run"
LABEL_DIR = "stormproof.dir"
LABEL_OWNER = "stormproof.owner."
_CLEANUP_LIMIT_S = 30
_IN_USE_SECONDS, _AGAIN_SECONDS = 20.0, 0.3
"""For how long the removal of an object in use is tried: another harness may be removing the same dead run, and a
busy engine needs more than its own ten seconds until a killed container has ended."""
_IN_USE = (403, 409, 500)
"""HTTP statuses of the engine: a network with containers; a conflict, or a removal under way; a container that was
killed and has not ended."""

NOT_ALLOWED = "this user may not use it"


def remove_run(client: docker.DockerClient, run: str) -> list[str]:
    """Remove a run's containers, networks and volumes; return the removed objects' names. Blocks.

    Raises:
        DockerException: the daemon refused.
    """
    label, removed = {"label": f"{LABEL_RUN}={run}"}, []
    for container in client.api.containers(all=True, filters=label):
        if remove_container(client, container["Id"]):
            removed.append(f"container {container['Names'][0].lstrip('/')}")
    for found in client.api.networks(filters=label):
        if remove_network(client, found["Id"]):
            removed.append(f"network {found['Name']}")
    for found in volumes_of(client, label):
        if remove_volume(client, found["Name"]):
            removed.append(f"volume {found['Name']}")
    return removed


def owner_labels(run_dir: Path) -> dict[str, str]:
    """Return the labels that everything of a run carries, which identify its owner."""
    owner = owner_of(run_dir).to_json()
    return {LABEL_RUN: run_dir.resolve().name, LABEL_DIR: str(run_dir.resolve()),
            **{f"{LABEL_OWNER}{name}": value for name, value in owner.items()}}


def remove_container(client: docker.DockerClient, ident: str) -> bool:
    """Remove a container with its volumes; returns False when it does not exist."""
    return _gone(client.api.remove_container, ident, force=True, v=True)


def remove_network(client: docker.DockerClient, ident: str) -> bool:
    """Remove a network; returns False when it does not exist."""
    return _gone(client.api.remove_network, ident)


def remove_volume(client: docker.DockerClient, name: str) -> bool:
    """Remove a volume; returns False when it does not exist."""
    return _gone(client.api.remove_volume, name)


def volumes_of(client: docker.DockerClient, labelled: dict[str, str]) -> list[dict[str, Any]]:
    """Return the volumes with these labels, as Docker's engine describes them."""
    return client.api.volumes(filters=labelled)["Volumes"] or []


def leftover(what: str, found: dict[str, Any], remove: Callable[[docker.DockerClient, str], bool]) -> Leftover:
    """Return what a dead run left, with its owner and the way to remove it."""
    labels = {str(name): str(value) for name, value in found["Labels"].items()}
    owner = Owner.from_json({name.removeprefix(LABEL_OWNER): value for name, value in labels.items()
                             if name.startswith(LABEL_OWNER)})
    run_dir = Path(labels[LABEL_DIR]) if labels.get(LABEL_DIR) else None

    def gone() -> bool:
        try:
            client = docker.from_env(timeout=_CLEANUP_LIMIT_S)
            try:
                return remove(client, found.get("Id") or found["Name"])  # Volumes have no other identifier.
            finally:
                client.close()
        except DockerException as error:
            raise OSError(0, reason_of(error)) from None

    return Leftover(what, labels[LABEL_RUN], run_dir, owner, run_dir and run_dir / LOCK_FILE, gone)


def _gone(remove: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Call an API that removes an object; returns False when another process has removed it.

    An object that is still in use, or whose removal another process has begun, is tried again for a while.
    """
    deadline = time.monotonic() + _IN_USE_SECONDS
    while True:
        try:
            remove(*args, **options)
        except NotFound:
            return False
        except APIError as error:
            if error.status_code not in _IN_USE or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return True


def reason_of(error: DockerException) -> str:
    """Return a brief reason: the SDK wraps the system's own error several times."""
    inner: BaseException | None = error
    while inner is not None:
        for cause in (inner, *inner.args):
            if isinstance(cause, PermissionError):
                return NOT_ALLOWED
            if isinstance(cause, FileNotFoundError | ConnectionRefusedError):
                return "there is no daemon"
        inner = inner.__cause__ or inner.__context__
    text = getattr(error, "explanation", None) or str(error)
    return " ".join(str(text).split())
