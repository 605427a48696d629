"""Starting Spark's JVM directly, by the command that Spark's scripts would compute.

``spark-submit`` is a script that starts a JVM to compute the command of another one, which then searches for the
program to submit. The command is recorded when the class-data archive is created (``checkers.prepare``), for the same
Java and the same Spark. With it, the program to submit, the gateway to Python, is started at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_TOLD_IN = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The variable that names the file in which the gateway writes its address."""
_LOOK_SECONDS = 0.01
_HEEDED = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_DRIVER_MEMORY",
           "SPARK_MEM", "SPARK_SUBMIT_OPTS", "SPARK_JAVA_OPTS", "SPARK_PREPEND_CLASSES", "SPARK_CLASSPATH",
           "SPARK_ENV_LOADED", "SPARK_TESTING")  # fmt: skip
"""Variables from which Spark's scripts derive a class path or options."""


def is_plain() -> bool:
    """Return whether no variable is set that would change the command of Spark's scripts."""
    return not any(name in os.environ for name in _HEEDED)


def note_command(pid: int, options: Sequence[str], place: Path) -> None:
    """Record the command by which ``spark-submit`` started a JVM, without the ``options`` that it was passed.

    Nothing is recorded if the system does not show the command, or if variables have changed it. If the record cannot
    be read later, Spark is started as usual.
    """
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        command = [word for word in words[: words.index(_SUBMIT)] if word not in options]
        if is_plain():
            partial.write_text(json.dumps(command), encoding="utf-8")
            partial.replace(place)


def noted_command(place: Path) -> list[str]:
    """Return the recorded command; empty if there is none, or variables would change it."""
    if not is_plain():
        return []
    try:
        command = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return command if isinstance(command, list) and all(isinstance(word, str) for word in command) else []


def start_jvm(command: Sequence[str], options: Sequence[str], folder: Path, log: IO[bytes]) -> Any:
    """Start a gateway by a recorded command with these ``options``; return None if it cannot start, or ends at once.

    ``log`` takes its output; ``folder`` holds a file for a moment.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        told = Path(place) / "gateway"
        try:
            process = subprocess.Popen(
                [*command, *options, _GATEWAY], stdin=subprocess.PIPE, stdout=log, stderr=log,
                preexec_fn=_ignore_interrupts,
                env={**os.environ, "SPARK_CONNECT_MODE": "0", _TOLD_IN: str(told)},
            )  # fmt: skip  # it ends when its standard input does
        except OSError:
            return None
        while not told.exists():
            if process.poll() is not None:
                return None
            time.sleep(_LOOK_SECONDS)
        gateway = _gateway_told(told)
    gateway.proc = process
    return gateway


def _gateway_told(told: Path) -> Any:
    """Return PySpark's gateway to a JVM that has written its address.

    PySpark reads the address from variables, which no other code may see: the secret gives full control over the JVM.
    """
    from pyspark import java_gateway
    from pyspark.serializers import UTF8Deserializer, read_int

    with told.open("rb") as info:
        place = {"PYSPARK_GATEWAY_PORT": str(read_int(info)), "PYSPARK_GATEWAY_SECRET": UTF8Deserializer().loads(info)}
    before = java_gateway.os
    java_gateway.os = SimpleNamespace(environ={**os.environ, **place})
    try:
        return java_gateway.launch_gateway()
    finally:
        java_gateway.os = before


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C: it is meant for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
