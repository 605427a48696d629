"""A Spark cluster on this machine: a master, and workers that see neither this project nor its environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pyspark

from checkers.spark.java import find_java

PROJECT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent


def why_not() -> str | None:
    """Why there can be none here."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "namespaces for the workers take root and unshare"
    return None


class SparkCluster:
    """A master and its workers; each worker is a process with all of its children in namespaces of its own.

    Workers have nothing but ``variables`` in their environment, and ``hidden`` is an empty folder to them.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], hidden: Path | None) -> None:
        self.folder, self._variables, self._hidden = folder, dict(variables), hidden
        self.port = _free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master: subprocess.Popen[bytes] | None = None

    def start(self, workers: int) -> None:
        """Start all of it, and wait until the workers are known to the master."""
        log = (self.folder / "master.log").open("wb")
        self._master = subprocess.Popen(
            [*_java(SPARK), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port),
             "--webui-port", "0"], stdout=log, stderr=log, env=_environment())  # fmt: skip
        for number in range(workers):
            self._start_worker(number)
        deadline = time.monotonic() + 120
        while (self.folder / "master.log").read_text().count("Registering worker") < workers:
            assert time.monotonic() < deadline, (self.folder / "master.log").read_text()
            time.sleep(0.2)

    def _start_worker(self, number: int) -> None:
        place = self.folder / f"worker{number}"
        (place / "spark").mkdir(parents=True)
        (place / "java").mkdir()
        java = find_java().home
        hide = "" if self._hidden is None else f"mount -t tmpfs none {self._hidden} && "
        # What lies under the project, its environment too, is not there for the worker: nor where it lies here.
        script = (
            f"mount --bind {SPARK} {place}/spark && mount --bind {java} {place}/java && "
            f"mount -t tmpfs none {PROJECT} && {hide}exec {shlex.join(_java(place / 'spark', place / 'java'))} "
            f"org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --cores 1 --memory 1500m --webui-port 0 "
            f"--work-dir {place}/work {self.master}"
        )
        log = (place / "log").open("wb")
        variables = _environment() | {"SPARK_HOME": f"{place}/spark"} | self._variables
        self.workers.append(subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "sh",
             "-c", script], stdout=log, stderr=log, cwd="/", env=variables))  # fmt: skip

    def log(self, number: int) -> str:
        """What the executors of a worker have written for people, all of it."""
        found = sorted((self.folder / f"worker{number}" / "work").glob("*/*/stderr"))
        return "".join(path.read_text(errors="replace") for path in found)

    def kill_worker(self, number: int) -> None:
        """End a worker with all that it has started, without a word."""
        self.workers[number].kill()
        self.workers[number].wait()

    def stop(self) -> None:
        """End all of it."""
        for process in [*self.workers, *([self._master] if self._master else [])]:
            process.kill()
            process.wait()


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int = 2, variables: Mapping[str, str] = MappingProxyType({}),
                  hidden: Path | None = None) -> Iterator[SparkCluster]:
    """A cluster for a while."""
    cluster = SparkCluster(folder, variables, hidden)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()


def _java(spark: Path, home: Path | None = None) -> list[str]:
    java = (home or find_java().home) / "bin" / "java"
    # What Spark's launcher adds for Java 17 and later.
    opens = ["java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
             "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
             "sun.util.calendar"]  # fmt: skip
    options = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opens]
    return [str(java), *options, "-Xmx256m", "-cp", f"{spark}/jars/*"]


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "SPARK_NO_DAEMONIZE": "1", "HOME": "/nonexistent",
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13", "LANG": "C.UTF-8"}  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
