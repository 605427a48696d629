"""Spark masters: their names, the settings that a cluster requires, and the environment that its workers get."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from stormproof.errors import SparkFailed, UsageError

LOCAL_MASTER = "local[*]"
SHIPPED = "STORMPROOF_SPARK_ENV"
"""The environment variable that names the archive for a cluster's workers (``checkers.spark.shipping``)."""
_TASK_ATTEMPTS = 4
"""Attempts at a task in local mode, as many as on a cluster."""
_MASTER_TIMEOUT_SECONDS = 10.0
"""Time for the connection to a standalone master."""
_SETTING = re.compile(r"(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")
_MASTER = re.compile(r"local(\[[\d*]+(,\d+)?\])?|spark://.*|yarn|k8s://.*")


def cluster_settings() -> dict[str, str]:
    """Read the settings that a cluster requires (a queue, an image, memory): ``spark-defaults.conf`` in
    ``SPARK_CONF_DIR``.

    Raises:
        UsageError: the file is not of this format.
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder or "") / "spark-defaults.conf"
    if not folder or not path.exists():
        return {}
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read ({error})") from error
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            setting = _SETTING.fullmatch(line)
            if setting is None:
                raise UsageError(f"{path}: {line.split()[0][:80]} is not a setting; write `spark.NAME VALUE` per line")
            found[setting[1]] = setting[2]
    return found


def demand_master(master: str) -> None:
    """Verify that the master of a standalone cluster is listening: otherwise Spark would wait for a minute.

    Raises:
        SparkFailed: no master listens, and the message says where; or the text does not name a master.
    """
    if _MASTER.fullmatch(master) is None:
        raise SparkFailed(f"{master} is not a Spark master: give local[N], spark://HOST:PORT, yarn, or k8s://https://HOST:PORT")
    places = re.findall(r"([^,/]+):(\d+)", master.removeprefix("spark://")) if master.startswith("spark://") else []
    refused = []
    for host, port in places:
        try:
            socket.create_connection((host, int(port)), _MASTER_TIMEOUT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            refused.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
    if refused or master.startswith("spark://"):
        raise SparkFailed(f"no Spark master answers at {master} ({'; '.join(refused) or 'write it as spark://host:port'})")


def ship_environment(archive: Path | None) -> None:
    """Ship an archive of ``checkers.spark.shipping`` to the workers of the contexts that start from now on.

    Raises:
        UsageError: the file does not exist.
    """
    if archive is None:
        return
    if not archive.is_file():
        raise UsageError(f"--spark-env {archive}: no such file; `stormproof spark-env {archive}` writes it")
    os.environ[SHIPPED] = str(archive.resolve())


def with_retries(master: str) -> str:
    """Add retries to a local master.

    ``local[N]`` gives a task one attempt; a worker that the kernel killed for lack of memory should get more.
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master
