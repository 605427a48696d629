"""The cause of a failed Spark job, as one line for users who do not know Spark."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import IO, Any

from stormproof.errors import SparkFailed

_OURS = re.compile(r"^stormproof\.errors\.\w+: (.+)$", re.MULTILINE)
"""The message of this project's errors, in the traceback that Spark returns."""
_PY4J, _OF_PYTHON = "An error occurred while calling", "An exception was thrown from the Python worker"
_PYTHON_ERROR = re.compile(r"(?!java|org|scala)[\w.]+(Error|Exception): ")
_SHIP = "ship it with --spark-env FILE, which `stormproof spark-env FILE` writes"
_KNOWN = (
    (re.compile(r"Cannot run program \"([^\"]+)\".*?(No such file|Permission denied)", re.DOTALL),
     "a worker can't start {0} ({1}): with --spark-env it takes the Python of the driver's version on its PATH, or "
     "what PYSPARK_PYTHON says"),
    (re.compile(r"No module named '((?:checkers|harness|stormproof|nodes|workloads|nemesis|numba|pyarrow)\b[^']*)'"),
     f"a worker has no Stormproof, or not all of it (there is no module {{0}}): {_SHIP}"),
    (re.compile(r"PYTHON_VERSION_MISMATCH\] (.+?)(?:\n|$)"),
     "a worker's Python is of another version than the driver's: {0}"),
    (re.compile(r"All masters are unresponsive|Application has been killed|Master removed our application"),
     "the Spark master has ended, or has ended this job"),
    (re.compile(r"No space left on device"), "a worker's disk is full (No space left on device)"),
)  # fmt: skip
_DEAD = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker failed to connect back")
_CUT = re.compile(r"Py4JNetworkError|Connection(Refused|Reset)Error|BrokenPipeError|Connection refused|"
                  r"An error occurred while calling \S+\Z")
"""The end of the error of a call that the JVM does not answer."""
_EXIT_TIMEOUT_SECONDS = 3.0
"""Time until a JVM that no longer answers is a process that has ended."""
_TASK = re.compile(r"Task (\d+) in stage \S+ failed \d+ times")
_LOG_TAIL_BYTES = 2000


class TaskDied(SparkFailed):
    """The process of a task died at each attempt. ``task`` is its number."""

    def __init__(self, task: int, sign: str) -> None:
        self.task = task
        self.reason = f"whatever judges it dies, most often for want of memory ({sign.rstrip('.')})"
        super().__init__(f"the Spark job failed: the process of task {task} died again and again, most often for want "
                         f"of memory ({sign.rstrip('.')})")


def failed(error: Exception) -> SparkFailed:
    """Convert the failure of a job to an error of this project."""
    text = words_of(error)
    if (ours := _OURS.search(text)) is not None:
        return SparkFailed(ours[1])
    if (dead := _DEAD.search(text)) is not None and (task := _TASK.search(text)) is not None:
        return TaskDied(int(task[1]), dead[0])
    for pattern, told in _KNOWN:
        if (found := pattern.search(text)) is not None:
            return SparkFailed("the Spark job failed: " + told.format(*(part.rstrip(".") for part in found.groups())))
    return SparkFailed(f"the Spark job failed: {_reason(text) or type(error).__name__}")


def failure_of(spark: Any, error: Exception) -> SparkFailed:
    """Convert the failure of a job in a context; if its JVM has ended, that is the cause."""
    process = getattr(getattr(spark, "_gateway", None), "proc", None)
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A call may fail before the end of the JVM's process is visible.
            cut = _CUT.search(f"{type(error).__name__}: {words_of(error)}")
            status = process.wait(_EXIT_TIMEOUT_SECONDS if cut else 0)
            how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
            return SparkFailed(f"the Spark job failed: Spark's JVM has ended ({how}), most often for want of memory")
    return failed(error)


def words_of(error: Exception) -> str:
    """Return an error's text; for one of Java's, PySpark asks the JVM, which may be gone."""
    try:
        return str(error)
    except Exception:
        return str(getattr(error, "errmsg", "") or type(error).__name__)


def _reason(text: str) -> str:
    """Return the most informative line: the end of a Python traceback, or the last cause that Java names."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not (lines[0].startswith(_PY4J) or _OF_PYTHON in lines[0]):
        return lines[0] if lines else ""
    told = [line for line in lines if _PYTHON_ERROR.match(line)]
    if told:
        return told[-1]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = (lines[1] if len(lines) > 1 else lines[0]).removeprefix(": ")
    return causes[-1] if causes and first.endswith("awaitResult:") else first


def reason_of_start(error: Exception, log: IO[bytes]) -> str:
    """Return the most informative line of a failed start: the JVM's last error, or else the exception's text."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
    said = ""
    for text in (log.read().decode("utf-8", "replace"), words_of(error)):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith(("at ", "... "))]  # the stack trace below an error
        telling = [line for line in lines if "Error" in line or "Exception" in line or "ERROR" in line]
        if telling:
            last = telling[-1].removeprefix('Exception in thread "main" ')
            return last.removeprefix("org.apache.spark.SparkException: ")
        said = (lines or [said])[-1]
    return said or type(error).__name__
