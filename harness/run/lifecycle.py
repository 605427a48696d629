"""One test from the outside: spawn the test runner and start Spark, check, store the verdict, tear down, report.

The test runner (``harness.run.test_runner``) is a child process for two reasons. On the ``local`` backend it lives in
its own namespaces. And Spark's JVM and threads must not disturb its clock. It ends when its standard input closes. A
simulated run has its own clock and runs in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from checkers.spark.job import check_runs
from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.session import SparkWarmup, spark_folder
from harness.analysis.coverage import note_log_events
from harness.analysis.run_diff import write_twin
from harness.backends.catalog import BACKENDS
from harness.backends.cleanup import cleanup
from harness.run import plugins
from harness.run.cases import BROKEN
from harness.run.child import ParentWatch
from harness.run.describe import command_line, create_run
from harness.run.fetch_progress import bring_broker
from harness.run.healing import clean_hosts
from harness.run.kept_nodes import NEVER, is_kept, wanted
from harness.run.progress import Event, progress
from harness.run.recovery import recover
from harness.sim.run import simulate
from reports.index_page import write_index
from reports.run_page import write_report
from stormproof.contracts.check import INVALID
from stormproof.errors import EXIT_ERROR, EXIT_OF, StormproofError
from stormproof.resource_log import FOLDER, note_made, note_owner
from stormproof.run_folder import (
    COMPOSE_OVERRIDE,
    HARNESS_LOG,
    HISTORY,
    RunLock,
    environment_read,
    is_alive,
    read_run,
    read_verdict,
    update_run,
)
from stormproof.store import Store
from stormproof.test import Test
from stormproof.timeout_scale import TIMEOUT_FACTOR

_EXIT_TIMEOUT = 30.0 * TIMEOUT_FACTOR


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, its verdict as stored, its report."""

    run_dir: Path
    verdict: Mapping[str, Any]
    report: Path
    command: str = ""
    """The command that runs the same test again."""
    reads: str = ""
    """The environment variables that the Compose file reads."""

    @property
    def exit_code(self) -> int:
        """The exit status: 0 valid, 2 unknown, 1 invalid; 3 for a run that could not be judged."""
        return EXIT_ERROR if self.verdict.get("damage") else EXIT_OF[self.verdict["verdict"]]

    @property
    def outcome(self) -> str:
        """The verdict, or ``broken`` if the run can't be judged."""
        return BROKEN if self.verdict.get("damage") else str(self.verdict["verdict"])

    @property
    def violated(self) -> tuple[str, ...]:
        """The checks whose guarantees were promised and violated."""
        return tuple(check["check"] for check in self.verdict["checks"]
                     if check["decides"] and check["verdict"] == INVALID)

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        promised = {check["anomaly"] for check in self.verdict["checks"] if check["decides"]}
        broken: list[str] = []
        permitted: list[str] = []
        for name, count in self.verdict["anomalies"].items():
            (broken if name in promised else permitted).append(f"{name} {count}")
        permitted += [f"{check['anomaly']} {count}" for check in self.verdict["checks"]
                      if (count := check.get("figures", {}).get("not_promised"))]  # fmt: skip
        override = self.run_dir / COMPOSE_OVERRIDE
        return [
            self.verdict["sentence"],
            f"  anomalies  {', '.join(broken) or 'none'}",
            *([f"  permitted  {', '.join(permitted)} (reported, but not promised)"] if permitted else []),
            f"  run        {self.run_dir}",
            f"  report     {self.report}",
            *([f"  added      {override} (to the Compose project)"] if override.exists() else []),
            *([f"  again      {self.command}"] if self.command else []),
            *([f"  reads      {self.reads}"] if self.reads else []),
            *([f"  nodes      kept: stormproof fault|shell|heal|down --store {self.run_dir.parent}"]
              if is_kept(self.run_dir) else []),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "verdict": self.verdict["verdict"],
            "run": self.run_dir.name,
            "anomalies": self.verdict["anomalies"],
            "sentence": self.verdict["sentence"],
            "report": str(self.report),
            "command": self.command,
        }


def run_test(
    test: Test, why: str, store_dir: Path, *, quiet: bool = False, spark: SparkWarmup | None = None,
    place: str = "", master: str = LOCAL_MASTER, keep: str = NEVER,
) -> RunResult:  # fmt: skip
    """Run a test to its stored verdict and report.

    ``why`` is the reason for the choice of the backend. ``quiet`` keeps standard output free (progress goes to standard
    error). ``spark`` is a context that has started or is starting, to be reused; without it, one of ``master`` is
    started. ``place`` is the position of this run among several. ``keep`` is the policy for keeping the nodes
    (``harness.run.kept_nodes``).

    Raises:
        StormproofError: the run broke; its records are kept and sealed.
        KeyboardInterrupt: Ctrl-C; faults are healed, the history is kept, everything else is removed.
    """
    warm = spark or SparkWarmup(master)  # reports a missing Java or master before anything is created
    try:
        bring_broker(test, quiet)
        outcome = _run(test, why, Store(store_dir), quiet, warm, place, keep)
    except BaseException:
        if spark is None:
            warm.abandon()
        raise
    if spark is None:
        warm.stop()
    return outcome


def _run(
    test: Test, why: str, store: Store, quiet: bool, warm: SparkWarmup, place: str, keep: str
) -> RunResult:
    run_dir = create_run(test, why, store.path)
    lock = RunLock(run_dir)
    note_owner(run_dir)
    note_made(run_dir, FOLDER, str(spark_folder()))
    with progress(quiet, test.time_limit, place) as show:
        try:
            _record_and_check(test, run_dir, lock, show, warm, keep)
        except BaseException as error:
            lock.release()
            _pick_up(run_dir, error)
            raise
        finally:
            lock.release()
        show({"event": "phase", "name": "report"})
        note_log_events(run_dir, over=True)
        if read_verdict(run_dir)["verdict"] == INVALID:
            with contextlib.suppress(StormproofError):  # a damaged earlier run, for example, is not this run's failure
                write_twin(store.path, run_dir)
        report = write_report(run_dir)
        write_index(store.path)
    verdict = read_verdict(run_dir)
    reads = environment_read(read_run(run_dir))
    return RunResult(run_dir, verdict, report, command_line(test, store.path, brief=True), reads)


def _record_and_check(
    test: Test, run_dir: Path, lock: RunLock, show: Callable[[Event], None], warm: SparkWarmup, keep: str
) -> None:
    if BACKENDS.load(test.backend).in_process:
        try:
            simulate(run_dir, show)
        except KeyboardInterrupt:
            print("\ninterrupted: the history is kept", file=sys.stderr)
            raise
        show({"event": "phase", "name": "check"})
        check_runs(warm.context(), [run_dir], prepare=plugins.preparation())
        return
    runner, broken = RunnerProcess(test, run_dir, lock), ""
    try:
        for event in runner.events():
            if event["event"] == "sealed":
                show({"event": "phase", "name": "check"})
                check_runs(warm.context(), [run_dir], prepare=plugins.preparation())
                runner.finish(keep=wanted(keep, str(read_verdict(run_dir)["verdict"])))
            elif event["event"] == "broken":
                broken = event["message"]
                runner.finish(keep=wanted(keep, ""))
            elif event["event"] == "kept":
                runner.leave()
                break
            else:
                show(event)
        if not runner.left:
            runner.wait()
        elif broken:
            raise StormproofError(broken)
    except KeyboardInterrupt:
        print("\ninterrupted: healing, keeping the history, tearing down", file=sys.stderr)
        runner.interrupt(show)
        raise
    finally:
        runner.end()


def _pick_up(run_dir: Path, error: BaseException) -> None:
    """Keep the history and remove the nodes after a runner died before doing so.

    A run that was fully recorded has not failed, even if an error prevented its check: it can be checked later.
    """
    if is_alive(run_dir) and not is_kept(run_dir):  # a person did not wait for the child
        print(f"{run_dir.name}: its last process still heals, seals the history and removes the nodes; later, "
              f"`stormproof heal --store {run_dir.parent}` tells whether anything is left", file=sys.stderr)
        return
    if not is_kept(run_dir):
        for line in [*cleanup([run_dir.name], own=True), *clean_hosts(run_dir)]:
            print(line, file=sys.stderr)
    try:
        recovery = recover(run_dir)
    except StormproofError as trouble:  # `error` is the reason to report, and usually the cause of this one
        print(f"{run_dir.name}: not sealed ({trouble}); later: stormproof recover {run_dir}", file=sys.stderr)
        return
    if recovery.changed:
        print(f"{run_dir.name}: {recovery.note}", file=sys.stderr)
    info = read_run(run_dir)
    if recovery.changed or info["status"] != "recorded":
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        info = update_run(run_dir, failure=why)
    print(_kept(run_dir, info), file=sys.stderr)


def _kept(run_dir: Path, info: Mapping[str, Any]) -> str:
    """Return what there is of a run that ended early, and the commands to go on with."""
    again = command_line(Test.from_json(info["test"]), run_dir.parent, brief=True)
    reads = f" (reads {reads})" if (reads := environment_read(info)) else ""
    recorded = (run_dir / HISTORY).exists() and pq.read_metadata(run_dir / HISTORY).num_rows
    what = f"what was recorded is in {run_dir}; `{plugins.check_command(run_dir)}` checks it" if recorded else (
        f"it ended before the first operation; its logs are in {run_dir}")
    return f"{what}; `{again}` runs it again{reads}"


class RunnerProcess:
    """The running child process. ``left`` tells that it stays with its nodes, and this process no longer controls
    it."""

    def __init__(self, test: Test, run_dir: Path, lock: RunLock, module: str = "harness.run.test_runner") -> None:
        """Start the child process, which runs ``module``."""
        self.left = False
        prefix = BACKENDS.load(test.backend).launch_prefix()
        self._run_dir = run_dir
        # The user's folder may hold packages with the names of ours.
        ours = Path.cwd().resolve() == Path(__file__).resolve().parents[2]
        environment = os.environ if ours else {**os.environ, "PYTHONSAFEPATH": "1"}
        # Its own session: Ctrl-C in a terminal reaches only the parent, which then tells it on its standard input.
        self._plugged = plugged = plugins.write_arguments()
        with (run_dir / HARNESS_LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, str(run_dir), *([str(plugged)] if plugged else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=environment,
                # The run is alive as long as either process is: the child may still be healing after the parent's end.
                pass_fds=(lock.fileno(),),
            )
        self._watch = ParentWatch(self._process.pid, run_dir, self._kill)
        self._watch.start()

    def events(self) -> Iterator[Event]:
        """Yield the events that the child reports, until it closes its output.

        Raises:
            StormproofError: the child reports the error that ended it.
        """
        for event in self._all_events():
            if event["event"] == "error":
                raise StormproofError(event["message"])
            yield event

    def _all_events(self) -> Iterator[Event]:
        assert self._process.stdout
        for line in self._process.stdout:
            yield json.loads(line)

    def tell(self, word: str) -> None:
        """Send a word to the child. If it is gone, do nothing."""
        assert self._process.stdin
        try:
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def finish(self, *, keep: bool) -> None:
        """Tell the child to end, or to keep its nodes."""
        self.tell("keep" if keep else "teardown")

    def leave(self) -> None:
        """Leave the child running, with its nodes."""
        self.left = True
        self._watch.end()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.returncode = 0  # nothing waits for it from now on

    def interrupt(self, show: Callable[[Event], None]) -> None:
        """End the run early and wait until the child has healed and sealed."""
        self.tell("interrupt")
        for event in self._all_events():
            if event["event"] != "error":
                show(event)

    def wait(self) -> None:
        """Wait for the end of a run that has closed its output.

        Raises:
            StormproofError: the child died.
        """
        status = self._process.wait(_EXIT_TIMEOUT)
        self._watch.end()
        if self._watch.killed:
            raise StormproofError(f"the harness's child process gave no sign for {ParentWatch.SILENT_SECONDS:g} s and "
                                  "was ended: code in it keeps Python from running; "
                                  f"`{plugins.check_command(self._run_dir)}` checks what it recorded")
        if status:
            raise StormproofError(
                f"the harness's child process ended with status {status}{self._last_words()}; "
                f"its log is {self._run_dir / HARNESS_LOG}; `{plugins.check_command(self._run_dir)}` checks what it "
                "recorded"
            )

    def end(self) -> None:
        """Make sure that the child ends. Closing its input lets it heal first."""
        if self._plugged is not None:
            self._plugged.unlink(missing_ok=True)  # it died before reading the file
        if self.left:
            return
        self._watch.end()
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            if self._kill():
                self._process.wait()

    def _kill(self) -> bool:
        try:
            self._process.kill()
        except PermissionError:
            # Under sudo the child belongs to root. It ends by itself, since its input is closed.
            print(f"process {self._process.pid} does not end; `stormproof heal` cleans up later", file=sys.stderr)
            return False
        return True

    def _last_words(self) -> str:
        lines = (self._run_dir / HARNESS_LOG).read_text(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""
