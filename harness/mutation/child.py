"""A process that runs seeds of a default campaign, with one mutation of the broker's source or none.

``python -m harness.mutation.child`` reads its job, a JSON object, from standard input, and writes a JSON line for each
run. Only this process has the mutation: it is compiled from the changed text when the module is imported. The process
ends when its standard input does, so it does not outlive its parent.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TextIO

from stormproof.errors import StormproofError

ROOT = Path(__file__).parents[2]
"""The folder that holds the packages."""
BROKER = "nodes/reference"
MOST_BYTES = 4 << 30
"""Memory for the data of one process: a mutant that collects without end must not take the machine's."""
INVALID, BROKEN, CRASH = "invalid", "broken", "crash"


class MutatedLoader(SourceFileLoader):
    """Loads a module from a changed source, and neither reads nor writes its compiled file."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source."""
        return compile(self._source, self.path, "exec", dont_inherit=True)


class MutatedFinder:
    """Finds one module, in place of the usual finders."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the changed module is loaded from; None for all others."""
        if name != self._name:
            return None
        loader = MutatedLoader(name, str(self._path), self._source)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


def module_name(file: str) -> str:
    """Return the name of the module in a file of the checkout."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def install(file: str, source: bytes) -> None:
    """Let this process import the file's module with another source.

    Raises:
        RuntimeError: the module is imported already.
    """
    name = module_name(file)
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already")
    sys.meta_path.insert(0, MutatedFinder(name, ROOT / file, source))


class LineTrace:
    """The lines of the broker's functions that this process executes."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}
        self._left: dict[CodeType, set[int]] = {}
        """Functions whose lines were not all executed yet, with those that are missing."""

    def call(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        """Begin to trace a function's lines, if it is the broker's and has lines left."""
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            file = code.co_filename
            ours = file.startswith(f"{ROOT / BROKER}/") and code.co_name not in ("<module>",)
            left = self._left[code] = {line for *_, line in code.co_lines() if line is not None} if ours else set()
            left.discard(code.co_firstlineno)
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            self._left[frame.f_code].discard(frame.f_lineno)
            self.lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return self._line

    def found(self) -> dict[str, list[int]]:
        """Return the lines by file, relative to the checkout."""
        return {str(Path(file).relative_to(ROOT)): sorted(lines) for file, lines in sorted(self.lines.items())}


def runs(system: str, seeds: Sequence[int], seconds: float) -> Iterator[Mapping[str, Any]]:
    """Run seeds of the system's default campaign; yield the answer to each, as JSON can hold it.

    A run that takes more than ``seconds`` of processor time ends the process by SIGPROF.
    """
    from harness.reference.mutants import caught_by
    from harness.run.cases import BROKEN as HARNESS_BROKEN
    from harness.sim.campaign import NONE, run_and_judge
    from harness.sim.draw import DrawnCase

    with tempfile.TemporaryDirectory(prefix="stormproof-mutant-", dir=_memory()) as scratch:
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            began = time.process_time()
            answer: dict[str, Any] = {"seed": seed, "by": [], "sentence": "", "command": ""}
            try:
                result, verdict = run_and_judge(DrawnCase(system), seed, Path("runs"), Path(scratch), NONE)
                answer |= {"verdict": result.verdict, "sentence": result.sentence, "command": result.command}
                if result.verdict == HARNESS_BROKEN:
                    answer |= {"by": ["broken run"]}
                elif verdict is not None and result.verdict == INVALID:
                    answer |= {"by": list(caught_by(verdict))}
            except StormproofError as error:
                answer |= {"verdict": BROKEN, "by": ["broken run"], "sentence": str(error)}
            except Exception as error:
                answer |= {"verdict": CRASH, "by": [f"crash: {type(error).__name__}"], "sentence": str(error)}
            signal.setitimer(signal.ITIMER_PROF, 0)
            yield answer | {"seconds": round(time.process_time() - began, 3)}


def _memory() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and os.access(shared, os.W_OK) else None


def main() -> None:
    """Do the job that standard input describes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What anything else prints must not mix with the answers.
    job = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    threading.Thread(target=_follow_parent, daemon=True).start()
    if job["source"] is not None:
        install(job["file"], job["source"].encode())
    trace = LineTrace() if job["trace"] else None
    try:
        import checkers.run_check  # noqa: F401 - every run needs it
        from nodes.systems.catalog import SYSTEMS

        SYSTEMS.load(job["system"])
    except Exception as error:
        _say(out, {"seed": job["seeds"][0], "verdict": CRASH, "by": [f"crash: {type(error).__name__}"], "command": "",
                   "sentence": f"import: {error}", "seconds": round(time.process_time(), 3)})  # fmt: skip
        return
    if trace is not None:
        sys.settrace(trace.call)
    _say(out, {"ready": round(time.process_time(), 3)})
    for answer in runs(job["system"], range(job["seeds"][0], job["seeds"][1] + 1), job["limit"]):
        _say(out, answer)
        if answer["by"] and trace is None:
            break
    if trace is not None:
        sys.settrace(None)
        _say(out, {"lines": trace.found()})


def _say(out: TextIO, answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=out, flush=True)


def _follow_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
