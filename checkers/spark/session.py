"""Starting Spark quickly, on any machine that has a Java, and without output on the terminal.

A plain start spends its time on loading and compiling the JVM's classes. A class-data archive (created once by
``checkers.prepare``), the serial collector and the first compiler tier only cut it to a fraction (``docs/spark.md``).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checkers.spark import fork_server, shipping
from checkers.spark.failures import reason_of_start, words_of
from checkers.spark.fork_server import ForkServer
from checkers.spark.java import Java, find_java
from checkers.spark.masters import LOCAL_MASTER, SHIPPED, cluster_settings, demand_master, with_retries
from stormproof.caches import cache_dir
from stormproof.errors import SparkFailed, StormproofError
from stormproof.limits import demand_files
from stormproof.resource_log import PREFIX, OwnFolder

_EXIT_TIMEOUT_SECONDS = 180
"""Time in which an orderly stopped JVM must end; then it is killed."""
_SILENCE_SECONDS = 30.0
"""Time after which a user is told that a cluster has not begun: its start alone takes some ten seconds."""
_ABANDON_POLL_SECONDS = 0.1
"""Interval between attempts to kill a JVM that is just being started."""
# Without -XX:-UsePerfData, a killed JVM would leave its performance file behind.
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")

_RECORDED = "jobs of RDDs, a session"
"""Spark's activities while ``checkers.prepare`` records the archive: an archive of other activities would lack classes.
"""

_PLAIN = re.compile(r"[A-Za-z0-9/_.+-]+")
"""Folder names that Spark's launcher reads correctly."""
_PLAIN_PLACE = Path("/tmp")
"""Replaces a temporary folder with another name."""
_start_lock = threading.Lock()
_folder_lock = threading.Lock()
_folder: OwnFolder | None = None
_server: ForkServer | None = None


def archive_path(java: Java) -> Path | None:
    """Return the path of the class-data archive for this Java and this Spark, existing or not; None without a cache
    folder.
    """
    import pyspark

    place = cache_dir()
    if place is None:
        return None
    # The JVM rejects an archive if its jars are not the files from which it was created.
    jars = Path(pyspark.__file__).parent / "jars"
    made = [f"{jar.name} {jar.stat().st_mtime_ns}" for jar in sorted(jars.glob("spark-*.jar"))]
    told = [java.version, str(java.home), pyspark.__version__, pyspark.__file__, *made, *_JVM_OPTIONS, _RECORDED]
    identity = "\n".join(told)
    return place / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def spark_folder() -> Path:
    """Return the folder of this process's Spark for temporary files; created if needed, removed with the JVM.

    Raises:
        SparkFailed: it can't be made.
    """
    global _folder
    with _folder_lock:
        if _folder is None:
            # Spark splits folder names at commas, and its launcher misreads further characters.
            place = Path(tempfile.gettempdir()).absolute()
            place = place if _PLAIN.fullmatch(str(place)) else _PLAIN_PLACE
            try:
                _folder = OwnFolder.make(place / f"{PREFIX}spark-{secrets.token_hex(8)}")
            except OSError as error:
                raise SparkFailed(f"Spark needs a folder for temporary files in {place}: {error.strerror}") from error
        return _folder.path


def _clean_up() -> None:
    global _folder, _server
    with _folder_lock:
        if _server is not None:
            _server.stop()
        _server = None
        if _folder is not None:
            _folder.remove()
        _folder = None


atexit.register(_clean_up)


def start_spark(master: str = LOCAL_MASTER, *, record_archive: Path | None = None) -> Any:
    """Return a Spark context: the running one if there is one.

    ``master`` is ``local[*]``, ``local[N]`` or ``spark://host:port``. ``record_archive`` makes the JVM write a
    class-data archive there when it ends.

    Raises:
        JavaMissing: there is no Java that can run Spark.
        SparkFailed: Spark did not start; the message says why.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    with _start_lock:
        running = SparkContext._active_spark_context
        if running is not None and running._jsc is not None:
            return running
        java = find_java()
        demand_master(master)
        logging.getLogger().addFilter(_is_of_others)
        logging.getLogger("py4j.clientserver").addFilter(_is_of_others)  # Ctrl-C in a call
        if master.startswith("local"):
            _start_fork_server()
        conf = SparkConf(loadDefaults=False).setAll(list(_settings(master, java, record_archive).items()))
        with tempfile.TemporaryFile("w+b") as log, _environment(java, master), _launched_from(spark_folder()):
            try:
                jvm = SparkContext._gateway or launch_gateway(conf, {"stdout": log, "stderr": log})
                context = SparkContext(gateway=jvm, conf=conf)
                context.setLogLevel("OFF")
                # Its thread would print a traceback when the JVM closes the connection.
                context._accumulatorServer.handle_error = lambda request, address: None
                return context
            except Exception as error:
                if SparkContext._gateway is None:
                    _clean_up()
                raise SparkFailed(f"Spark did not start on {master}: {reason_of_start(error, log)}") from error


def _start_fork_server() -> None:
    """Import the workers' modules, with the variables that Spark would set, while the JVM starts; only once.

    Raises:
        SparkFailed: its folder can't be made.
    """
    global _server
    folder = spark_folder()
    with _folder_lock:
        if _server is None:
            _server = ForkServer(folder, {**worker_variables(), "OMP_NUM_THREADS": "1",
                                          "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")})  # fmt: skip


def worker_variables() -> dict[str, str]:
    """Return the environment variables of processes that judge."""
    here = Path(__file__).resolve().parents[1]
    # A process that judges fills large arrays once: finding huge pages for them takes longer than they save.
    path = os.pathsep.join((str(here.parent), str(here / "porcupine-py")))
    return {"PYTHONPATH": path, "NUMPY_MADVISE_HUGEPAGE": "0"}


def _settings(master: str, java: Java, record_archive: Path | None) -> dict[str, str]:
    local = master.startswith("local")
    folder = spark_folder()
    settings = {
        "spark.master": with_retries(master),
        "spark.app.name": "stormproof check",
        "spark.local.dir": str(folder),
        "spark.submit.deployMode": "client",
        "spark.jars.ivy": str(folder / "ivy"),  # else in the home of the user, who may have none
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(_driver_options(java, record_archive)),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "checkers.spark.daemon",
        **{f"spark.executorEnv.{name}": value for name, value in worker_variables().items()},
        "spark.sql.execution.arrow.maxRecordsPerBatch": "262144",
        # The queries run over small tables: compiling and adapting them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
    }
    if local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    elif archive := os.environ.get(SHIPPED):
        settings |= {"spark.archives": f"{archive}#{shipping.UNPACKED}",
                     "spark.executorEnv.PYTHONPATH": shipping.python_path()}  # fmt: skip
    return settings if local else {**cluster_settings(), **settings}


def _driver_options(java: Java, record_archive: Path | None) -> list[str]:
    folder = spark_folder()
    return [*_JVM_OPTIONS, f"-Djava.io.tmpdir={folder}", f"-XX:ErrorFile={folder}/hs_err.log",
            *_archive_options(java, record_archive)]


def _archive_options(java: Java, record_archive: Path | None) -> list[str]:
    if record_archive is not None:
        return [f"-XX:ArchiveClassesAtExit={record_archive}"]
    archive = archive_path(java)
    if archive is None or not archive.exists() or not _PLAIN.fullmatch(str(archive)):
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


@contextlib.contextmanager
def _environment(java: Java, master: str) -> Iterator[None]:
    """Set the variables for Spark's launcher and its workers; restore the old values afterwards."""
    import pyspark

    wanted = {
        "JAVA_HOME": str(java.home),
        # The home or configuration of another Spark on this machine must not affect this one.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LAUNCHER_OPTS": " ".join(_JVM_OPTIONS),
    }
    if master.startswith("local"):
        wanted |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        if _server is not None:
            wanted[fork_server.VARIABLE] = str(_server.place)
    else:
        there = shipping.interpreter() if os.environ.get(SHIPPED) else sys.executable
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", there)
    with _variables(wanted):
        yield


@contextlib.contextmanager
def _launched_from(folder: Path) -> Iterator[None]:
    """Let PySpark's launcher create its folder in ``folder``: if it is killed, no other process would remove its
    folder.
    """
    from pyspark import java_gateway

    before = java_gateway.tempfile
    java_gateway.tempfile = SimpleNamespace(mkdtemp=lambda: tempfile.mkdtemp(dir=folder), mkstemp=tempfile.mkstemp)
    try:
        yield
    finally:
        java_gateway.tempfile = before


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def stop_spark() -> None:
    """End the context and its JVM, and wait for its end; does nothing if there is none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with _start_lock:
        session = SparkSession._instantiatedSession
        gateway = SparkContext._gateway
        try:
            if session is not None:
                session.stop()
            if SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.stop()
            if gateway is not None:
                gateway.shutdown()
        except Exception:
            _forget_session(SparkContext)  # the JVM has died meanwhile; its jobs have been reported by now
        if gateway is None:
            _clean_up()
            return
        SparkContext._gateway = None
        SparkContext._jvm = None
        process = gateway.proc
        process.stdin.close()
        try:
            process.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _clean_up()


def _terminate(spark_context: Any, local: bool) -> None:
    """End the JVM: kill a local one at once; terminate one that must sign off from a cluster."""
    gateway = spark_context._gateway
    if gateway is not None:
        (gateway.proc.kill if local else gateway.proc.terminate)()


def _forget_spark(spark_context: Any) -> None:
    """Wait for the end of a terminated JVM, and reset the state so that this process can start another one."""
    if spark_context._gateway is not None:
        spark_context._gateway.proc.wait(_EXIT_TIMEOUT_SECONDS)
    _clean_up()
    _forget_session(spark_context)
    spark_context._gateway = spark_context._jvm = None


def _forget_session(spark_context: Any) -> None:
    """Discard this process's session and its context."""
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = SparkSession._activeSession = None
    spark_context._active_spark_context = None


def _is_of_others(record: logging.LogRecord) -> bool:
    """Tell whether a log record does not come from Py4J.

    Py4J logs each call that a dead JVM does not answer to the root logger, with a traceback; the caller gets the error
    as well.
    """
    return "py4j" not in record.pathname


def _is_running() -> bool:
    """Return whether this process has a JVM already, without importing Spark, which takes half a second."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


@contextlib.contextmanager
def _patience(master: str) -> Iterator[None]:
    """Tell the user the reason for the wait if a cluster does not begin soon: it may have no free worker, or none at
    all.
    """

    def tell() -> None:
        print(f"stormproof: {master} has not begun yet: it waits for a worker that is free, and gets there what it "
              "needs", file=sys.stderr, flush=True)

    timer = threading.Timer(_SILENCE_SECONDS, tell)
    timer.daemon = True
    if not master.startswith("local"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SparkWarmup:
    """A context that starts in the background, so that it is ready when a run has been recorded.

    Its constructor raises JavaMissing, or SparkFailed if no master answers: before the run, not after it.
    """

    def __init__(self, master: str = LOCAL_MASTER) -> None:
        self._master = master
        self._context: Any = None
        self._error: Exception | None = None
        demand_files("Spark")
        # A context that existed before belongs to other code in this process, which will stop it.
        self._owner = not _is_running()
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        # Python 3.11 considers a thread ended if Ctrl-C has interrupted its `join`.
        self._started = threading.Event()
        find_java()
        demand_master(self._master)
        if self._owner and self._master.startswith("local"):
            _start_fork_server()
        self._thread.start()

    def _start(self) -> None:
        try:
            # The import takes half a second, for which recording a run must not wait either.
            from checkers.spark.job import warm_up

            context = start_spark(self._master)
            with _patience(self._master):
                warm_up(context)
            self._context = context
        except Exception as error:
            self._error = error
        finally:
            self._started.set()

    def context(self) -> Any:
        """Return the context, once it has started.

        Raises:
            SparkFailed: it did not start.
            JavaMissing: there is no Java that can run Spark.
        """
        self._started.wait()
        if self._error is not None:
            if isinstance(self._error, StormproofError):
                raise self._error
            raise SparkFailed(f"Spark did not start on {self._master}: {words_of(self._error)}") from self._error
        return self._context

    def stop(self) -> None:
        """End the context and its JVM, if this object started them."""
        self._started.wait()
        self._thread.join()
        if self._owner:
            stop_spark()

    def abandon(self) -> None:
        """End the JVM at once, even in the middle of its start; half a second faster than ``stop``.

        For a process that is about to end: Spark's data in memory are lost, its temporary files are removed.
        """
        from pyspark import SparkContext

        while True:
            if self._owner:
                _terminate(SparkContext, self._master.startswith("local"))
            # A thread that is still running when the interpreter ends would abort the process.
            if self._started.wait(_ABANDON_POLL_SECONDS):
                self._thread.join()
                break
        if self._owner:
            _terminate(SparkContext, self._master.startswith("local"))
            _forget_spark(SparkContext)
