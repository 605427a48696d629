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
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from checkers.caches import cache_dir
from checkers.spark import fork_server, shipping
from checkers.spark import jvm_launcher as gateway
from checkers.spark.failures import words_of
from checkers.spark.fork_server import FORK_SERVER, ForkServer
from checkers.spark.java import Java, find_java
from stormproof.errors import SparkFailed, StormproofError, UsageError
from stormproof.limits import demand_files
from stormproof.resource_log import PREFIX, OwnFolder

if TYPE_CHECKING:
    from pyarrow import Table

    from checkers.spark.head_start import HeadStart
    from checkers.spark.tasks import Progress

LOCAL_MASTER = "local[*]"
SHIPPED = "STORMPROOF_SPARK_ENV"
"""The environment variable that names the archive for a cluster's workers (``checkers.spark.shipping``)."""
_TASK_ATTEMPTS = 4
_EXIT_TIMEOUT = 180
_MASTER_TIMEOUT = 10.0
_PATIENCE = 30.0
_ABANDON_SECONDS = 0.1
_LOG_TAIL = 2000

# Without -XX:-UsePerfData, a killed JVM would leave its performance file behind.
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")

_RECORDED = "jobs of RDDs, a session, the command noted"
"""Spark's activities while ``checkers.prepare`` records the archive: an archive of other activities would lack classes.
"""

_PLAIN = re.compile(r"[A-Za-z0-9/_.+-]+")
_PLAIN_PLACE = Path("/tmp")
_SETTING = re.compile(r"(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")
_MASTER = re.compile(r"local(\[[\d*]+(,\d+)?\])?|spark://.*|yarn|k8s://.*")

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


def note_of(archive: Path) -> Path:
    """Return the path of the record with the command of the archive's JVM."""
    return archive.with_suffix(".json")


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

    with _start_lock:
        running = SparkContext._active_spark_context
        if running is not None and running._jsc is not None:
            return running
        java = find_java()
        demand_master(master)
        logging.getLogger().addFilter(_is_of_others)
        if master.startswith("local"):
            start_fork_server()
        conf = SparkConf(loadDefaults=False).setAll(list(_settings(master, java, record_archive).items()))
        with tempfile.TemporaryFile("w+b") as log, _environment(java, master), _launched_from(spark_folder()):
            try:
                jvm = SparkContext._gateway or _start_jvm(conf, java, master, record_archive, log)
                context = SparkContext(gateway=jvm, conf=conf)
                context.setLogLevel("OFF")
                # Its thread would print a traceback when the JVM closes the connection.
                context._accumulatorServer.handle_error = lambda request, address: None
                return context
            except Exception as error:
                if SparkContext._gateway is None:
                    _clean_up()
                raise SparkFailed(f"Spark did not start on {master}: {_reason(error, log)}") from error


def _start_jvm(conf: Any, java: Java, master: str, record_archive: Path | None, log: IO[bytes]) -> Any:
    """Return the gateway to a new JVM, started by the recorded command on this machine, or else in PySpark's way."""
    from pyspark.java_gateway import launch_gateway

    options, archive = _driver_options(java, record_archive), archive_path(java)
    note = note_of(archive) if archive is not None else None
    if note is not None and record_archive is None and master.startswith("local"):
        command = gateway.noted_command(note)
        if command and (started := gateway.start_jvm(command, options, spark_folder(), log)) is not None:
            return started
    started = launch_gateway(conf, {"stdout": log, "stderr": log})
    if note is not None and record_archive is not None:
        gateway.note_command(started.proc.pid, options, note)
    return started


def start_fork_server() -> None:
    """Import the workers' modules, with the variables that Spark would set, while the JVM starts or this process does
    other work; only once.

    Raises:
        SparkFailed: its folder can't be made.
    """
    global _server
    folder = spark_folder()
    with _folder_lock:
        if _server is None:
            _server = ForkServer(folder, {**_worker_variables(), "OMP_NUM_THREADS": "1",
                                          "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")})  # fmt: skip


def _worker_variables() -> dict[str, str]:
    here = Path(__file__).resolve().parents[1]
    # A process that judges fills large arrays once: finding huge pages for them takes longer than they save.
    path = os.pathsep.join((str(here.parent), str(here / "porcupine-py")))
    return {"PYTHONPATH": path, "NUMPY_MADVISE_HUGEPAGE": "0"}


def _settings(master: str, java: Java, record_archive: Path | None) -> dict[str, str]:
    local = master.startswith("local")
    folder = spark_folder()
    settings = {
        "spark.master": _with_retries(master),
        "spark.app.name": "stormproof check",
        "spark.local.dir": str(folder),
        "spark.submit.deployMode": "client",
        "spark.jars.ivy": str(folder / "ivy"),  # else in the home of the user, who may have none
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(_driver_options(java, record_archive)),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "checkers.spark.daemon",
        **{f"spark.executorEnv.{name}": value for name, value in _worker_variables().items()},
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
    return settings if local else {**_of_the_cluster(), **settings}


def _driver_options(java: Java, record_archive: Path | None) -> list[str]:
    folder = spark_folder()
    return [*_JVM_OPTIONS, f"-Djava.io.tmpdir={folder}", f"-XX:ErrorFile={folder}/hs_err.log",
            *_archive_options(java, record_archive)]


def _of_the_cluster() -> dict[str, str]:
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
            socket.create_connection((host, int(port)), _MASTER_TIMEOUT).close()
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


def _with_retries(master: str) -> str:
    """Add retries to a local master.

    ``local[N]`` gives a task one attempt; a worker that the kernel killed for lack of memory should get more.
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master


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


def _reason(error: Exception, log: IO[bytes]) -> str:
    """Return the most informative line of a failed start: the JVM's last error, or else the exception's text."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL))
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
            process.wait(_EXIT_TIMEOUT)
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
        spark_context._gateway.proc.wait(_EXIT_TIMEOUT)
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

    timer = threading.Timer(_PATIENCE, tell)
    timer.daemon = True
    if not master.startswith("local"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SparkWarmup:
    """A context that starts in the background, so that it is ready when a run has been recorded.

    Its constructor raises JavaMissing, or SparkFailed if no master answers: before the run, not after it. With
    ``later`` the start waits for ``begin`` or for the first use of the context, which may never occur.
    """

    def __init__(self, master: str = LOCAL_MASTER, *, later: bool = False) -> None:
        self._master = master
        self._context: Any = None
        self._error: Exception | None = None
        demand_files("Spark")
        # A context that existed before belongs to other code in this process, which will stop it.
        self._owner = not _is_running()
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        # Python 3.11 considers a thread ended if Ctrl-C has interrupted its `join`.
        self._started = threading.Event()
        self._begun = False
        if later:
            self._serve()
        else:
            self.begin()

    def begin(self) -> None:
        """Start the context now, if it has not begun; raises like the constructor."""
        if not self._begun:
            find_java()
            demand_master(self._master)
            self._serve()
            self._begun = True
            self._thread.start()

    def _serve(self) -> None:
        if self._owner and self._master.startswith("local"):
            start_fork_server()
        self._environ = dict(os.environ)

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
        self.begin()
        self._started.wait()
        if self._error is not None:
            if isinstance(self._error, StormproofError):
                raise self._error
            raise SparkFailed(f"Spark did not start on {self._master}: {words_of(self._error)}") from self._error
        return self._context

    def judge_ahead(self, run_dirs: Sequence[Path]) -> HeadStart | None:
        """Have runs judged until the context has started; return None without a fork server."""
        from checkers.spark.head_start import HeadStart

        server = _server  # a failing start resets it
        if server is None:
            return None
        return HeadStart([run.resolve() for run in run_dirs], server.place, self._environ)

    def judge_without(self, run_dirs: Sequence[Path], progress: Progress) -> Table:
        """Have runs judged without Spark, on all cores; return the rows of the judged ones."""
        from checkers.spark.head_start import judge_all

        runs = list(dict.fromkeys(run.resolve() for run in run_dirs))
        return judge_all(runs, spark_folder() / FORK_SERVER, self._environ, progress)

    def stop(self) -> None:
        """End the context and its JVM, if this object started them."""
        if not self._begun:
            self.abandon()
            return
        self._started.wait()
        self._thread.join()
        if self._owner:
            stop_spark()

    def abandon(self) -> None:
        """End the JVM at once, even in the middle of its start; half a second faster than ``stop``.

        For a process that is about to end: Spark's data in memory are lost, its temporary files are removed.
        """
        if not self._begun:
            if self._owner:
                _clean_up()
            return
        from pyspark import SparkContext

        while True:
            if self._owner:
                _terminate(SparkContext, self._master.startswith("local"))
            # A thread that is still running when the interpreter ends would abort the process.
            if self._started.wait(_ABANDON_SECONDS):
                self._thread.join()
                break
        if self._owner:
            _terminate(SparkContext, self._master.startswith("local"))
            _forget_spark(SparkContext)
