"""Starting Spark's JVM by the command that Spark's own scripts would find out.

``spark-submit`` is a script that starts a JVM to work out the command of another one, which then looks for what it is
to submit: half a second, and more where the cores have other work. The command is noted when the class-data archive is
made (``checkers.prepare``), for the same Java and the same Spark; what it would submit, the gateway to Python, is
started at once instead.
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
from typing import IO, Any

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_TOLD_IN = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The variable that tells the gateway in which file to say where it listens."""
_LOOK_SECONDS = 0.01


def note_command(pid: int, options: Sequence[str], place: Path) -> None:
    """Note how ``spark-submit`` has started a JVM, without the ``options`` that it was asked to give it, if the system
    tells; whoever can't read the note does without."""
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        command = [word for word in words[: words.index(_SUBMIT)] if word not in options]
        place.write_text(json.dumps(command), encoding="utf-8")


def noted_command(place: Path) -> list[str]:
    """What was noted; empty if nothing was."""
    try:
        command = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return command if isinstance(command, list) and all(isinstance(word, str) for word in command) else []


def start_jvm(command: Sequence[str], options: Sequence[str], folder: Path, log: IO[bytes]) -> Any:
    """Start a gateway by a noted command with these ``options``; None if it ends at once. ``log`` takes what it says,
    ``folder`` a file."""
    from pyspark.java_gateway import launch_gateway
    from pyspark.serializers import UTF8Deserializer, read_int

    told = Path(tempfile.mkdtemp(dir=folder)) / "gateway"
    process = subprocess.Popen(
        [*command, *options, _GATEWAY], stdin=subprocess.PIPE, stdout=log, stderr=log, preexec_fn=_ignore_interrupts,
        env={**os.environ, "SPARK_CONNECT_MODE": "0", _TOLD_IN: str(told)},
    )  # it ends when its standard input does
    while not told.exists():
        if process.poll() is not None:
            return None
        time.sleep(_LOOK_SECONDS)
    with told.open("rb") as info:
        place = {"PYSPARK_GATEWAY_PORT": str(read_int(info)), "PYSPARK_GATEWAY_SECRET": UTF8Deserializer().loads(info)}
    os.environ.update(place)
    try:
        gateway = launch_gateway()
    finally:
        for name in place:
            del os.environ[name]
    gateway.proc = process
    return gateway


def _ignore_interrupts() -> None:
    """Ctrl-C is for whoever started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
