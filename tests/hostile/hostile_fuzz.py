"""A small fuzzer: inputs are mutated, and kept where they reach lines that none reached before.

``python tests/hostile/hostile_fuzz.py TARGET... --seconds 60`` gives each target that time, in a process of its own,
and prints a line of JSON for each. A finding (an exception that the target does not allow, an input that takes
too long or too much memory, a process that dies) ends the target; its input is kept in ``--keep``.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS_AN_INPUT = 20.0
"""Of the processor's time; a usual one takes a few milliseconds."""
BYTES_MORE = 1 << 30
"""By which the process may grow while it goes through inputs; what it reads is bounded to a fraction of this."""
MAX_INPUT = 1 << 16
CORPUS = 4000
"""Inputs that are kept."""

_NUMBERS = (b"0", b"-1", b"1", b"127", b"255", b"65536", b"2147483648", b"9223372036854775807", b"9223372036854775808",
            b"-9223372036854775809", b"1e999", b"0.1", b"NaN", b"1" * 400, b"-0", b"1e-5")  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, -2, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, 1e308, "", "x", "x" * 300, "\ud800", "\0",
    "n1", "../../x", "<script>", "nan", [], {}, [[]], [None], {"": None},
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What is fuzzed: ``run`` takes an input and raises only what is a finding."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    watch: Sequence[str]
    """Beginnings of the paths of the files whose lines count; none where to watch them would take most of the time."""
    words: Sequence[bytes] = ()
    is_json: bool = False
    """Whether inputs are JSON, or lines of it: then values are mutated, too."""
    is_script: bool = False
    """Whether inputs are lines of JSON that are carried out one after the other: nearly all that is tried is such."""


@dataclass
class Result:
    """What came of fuzzing a target."""

    target: str
    inputs: int = 0
    lines: int = 0
    seconds: float = 0.0
    finding: str = ""
    input: str = ""

    def line(self) -> str:
        return json.dumps(self.__dict__)


@dataclass
class Mutator:
    """Makes new inputs of old ones."""

    chance: random.Random
    words: Sequence[bytes]
    is_json: bool
    corpus: list[bytes] = field(default_factory=list)
    is_script: bool = False

    def make(self) -> bytes:
        """One new input."""
        data = self.chance.choice(self.corpus[-64:] if self.chance.random() < 0.3 else self.corpus)
        if self.is_script and self.chance.random() < 0.9:
            for _ in range(self.chance.choice((1, 1, 2, 3, 5))):
                data = (self._json(data) if self.chance.random() < 0.7 else self._reordered(data))[:MAX_INPUT]
            return data
        if self.is_json and self.chance.random() < 0.6:
            data = self._json(data)
        for _ in range(self.chance.choice((0, 1, 1, 2, 4, 8)) if self.is_json else self.chance.choice((1, 1, 2, 4, 8))):
            data = self._bytes(data)[:MAX_INPUT]
        return data

    def _bytes(self, data: bytes) -> bytes:
        chance, size = self.chance, len(data)
        a, b = sorted((chance.randrange(size + 1), chance.randrange(size + 1)))
        if chance.random() < 0.7:
            b = min(b, a + chance.choice((1, 2, 4, 8, 32)))
        match chance.randrange(9):
            case 0:
                return data[:a] + bytes([chance.randrange(256)]) + data[a + 1 :]
            case 1:
                return data[:a] + data[b:]
            case 2:
                return data[:b] + data[a:b] + data[b:]
            case 3:
                other = chance.choice(self.corpus)
                c = chance.randrange(len(other) + 1)
                return data[:a] + other[c : c + chance.choice((4, 16, 64, 1024))] + data[b:]
            case 4 if self.words:
                return data[:a] + chance.choice(self.words) + data[chance.choice((a, b)) :]
            case 5:
                return self._number(data, a)
            case 6 if b > a:
                return data[:a] + data[a:b] * chance.choice((10, 100, 2000)) + data[b:]
            case 7:
                return data[:a] + bytes([(data[a] if a < size else 0) ^ (1 << chance.randrange(8))]) + data[a + 1 :]
            case _:
                return data[:a] + chance.randbytes(b - a) + data[b:]

    def _number(self, data: bytes, place: int) -> bytes:
        """Another number in place of the first from here on."""
        start = next((i for i in range(place, len(data)) if 48 <= data[i] < 58), None)
        if start is None:
            return data + self.chance.choice(_NUMBERS)
        end = start
        while end < len(data) and 48 <= data[end] < 58:
            end += 1
        return data[:start] + self.chance.choice(_NUMBERS) + data[end:]

    def _json(self, data: bytes) -> bytes:
        """A value in the text, or in one of its lines, is another."""
        lines = data.split(b"\n")
        whole = self._decoded(data)
        if whole is not None:
            return json.dumps(self._changed(whole, 0)).encode("utf-8", "surrogatepass")
        place = self.chance.randrange(len(lines))
        value = self._decoded(lines[place])
        if value is not None:
            lines[place] = json.dumps(self._changed(value, 0)).encode("utf-8", "surrogatepass")
        return b"\n".join(lines)

    def _reordered(self, data: bytes) -> bytes:
        """A line goes, comes again, or comes from another input."""
        lines, chance = data.split(b"\n"), self.chance
        a, b = chance.randrange(len(lines)), chance.randrange(len(lines) + 1)
        match chance.randrange(4):
            case 0:
                del lines[a]
            case 1:
                lines.insert(b, lines[a])
            case 2:
                lines.insert(b, lines.pop(a))
            case _:
                lines.insert(b, chance.choice(chance.choice(self.corpus).split(b"\n")))
        return b"\n".join(lines)

    def _part(self) -> Any:
        """A value somewhere in an input."""
        lines = self.chance.choice(self.corpus).split(b"\n")
        value = self._decoded(self.chance.choice(lines))
        while isinstance(value, list | dict) and value and self.chance.random() < 0.7:
            value = self.chance.choice(list(value.values()) if isinstance(value, dict) else value)
        return value

    @staticmethod
    def _decoded(data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None

    def _changed(self, value: Any, depth: int) -> Any:
        chance = self.chance
        inner: Any = None
        if isinstance(value, dict) and value and depth < 20 and chance.random() < 0.9:
            name = chance.choice(list(value))
            if chance.random() < 0.15:
                return {n: v for n, v in value.items() if n != name}
            if chance.random() < 0.1:
                return {**value, chance.choice([*value, "", "x"]): chance.choice(_VALUES)}
            return {**value, name: self._changed(value[name], depth + 1)}
        if isinstance(value, list) and value and depth < 20 and chance.random() < 0.8:
            place = chance.randrange(len(value))
            if chance.random() < 0.2:
                return value[:place] + value[place + 1 :]
            if chance.random() < 0.2:
                return value * chance.choice((2, 20))
            inner = self._changed(value[place], depth + 1)
            return [*value[:place], inner, *value[place + 1 :]]
        if chance.random() < 0.1:
            for _ in range(chance.choice((3, 60, 200))):
                inner = [inner] if chance.random() < 0.5 else {"a": inner}
            return inner
        if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
            return value + chance.choice((-1, 1, 1000, -1000))
        if self.is_script and chance.random() < 0.3:
            return self._part()
        return chance.choice(_VALUES)


class Lines:
    """Which lines of the watched files were reached."""

    def __init__(self, watch: Sequence[str]) -> None:
        self.seen: set[tuple[int, int]] = set()
        self._watch = tuple(str(ROOT / each) for each in watch)
        self._codes: dict[Any, int | None] = {}

    def begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._codes:
            watched = code.co_filename.startswith(self._watch)
            self._codes[code] = len(self._codes) if watched else None
        number = self._codes[code]
        if number is None:
            return None
        add = self.seen.add

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            add((number, frame.f_lineno))
            return line

        return line


class TooSlow(BaseException):
    """An input took more of the processor's time than any should."""


def fuzz(name: str, target: Target, seconds: float, seed: int, note: Callable[[bytes], None]) -> Result:
    """Fuzz a target in this process; ``note`` is given each input before it is tried, in case the process dies."""
    result = Result(name)
    mutator = Mutator(random.Random(f"{name} {seed}"), target.words, target.is_json, is_script=target.is_script)
    lines = Lines(target.watch)
    for data in target.seeds:  # what is imported and compiled does not count
        note(data)
        target.run(data)
    began = time.monotonic()
    for data in target.seeds:
        if not _tried(target, data, result, note, lines):
            return result
        mutator.corpus.append(data)
    before = _most_memory()

    def slow(*_: object) -> None:
        raise TooSlow(f"more than {SECONDS_AN_INPUT:g} s")

    signal.signal(signal.SIGPROF, slow)
    while time.monotonic() - began < seconds:
        known = len(lines.seen)
        data = mutator.make()
        if not _tried(target, data, result, note, lines):
            break
        if _most_memory() - before > BYTES_MORE:
            result.finding, result.input = "it took more than 1 GiB", base64.b64encode(data).decode()
            break
        news = len(lines.seen) > known if target.watch else mutator.chance.random() < 0.02
        if news and len(mutator.corpus) < CORPUS:
            mutator.corpus.append(data)
    result.seconds, result.lines = round(time.monotonic() - began, 1), len(lines.seen)
    return result


def _tried(target: Target, data: bytes, result: Result, note: Callable[[bytes], None], lines: Lines) -> bool:
    note(data)
    result.inputs += 1
    signal.setitimer(signal.ITIMER_PROF, SECONDS_AN_INPUT)
    sys.settrace(lines.begin if target.watch else None)
    try:
        target.run(data)
    except (Exception, TooSlow) as error:
        sys.settrace(None)
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        result.finding = f"{type(error).__name__}: {str(error)[:300]} ({where})"
        result.input = base64.b64encode(data).decode()
        traceback.print_exc()
        return False
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return True


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def in_child(name: str, seconds: float, seed: int, keep: Path) -> Result:
    """Fuzz a target in a process of its own; one that dies is a finding as well."""
    keep.mkdir(parents=True, exist_ok=True)
    last = keep / f"{name}.{os.getpid()}.last"
    command = [sys.executable, str(Path(__file__)), name, "--here", str(last), "--seconds", str(seconds), "--seed",
               str(seed)]  # fmt: skip
    environment = {**os.environ, "STORMPROOF_MAX_HISTORY": "64M", "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch,
                              timeout=seconds * 3 + 600, env={**environment, "TMPDIR": scratch})  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"target"')]
    result = Result(**json.loads(lines[-1])) if lines else Result(name)
    if not lines or (done.returncode and not result.finding):
        tail = done.stderr.strip().splitlines()[-12:]
        result.finding = f"the process ended with {done.returncode}: {' | '.join(tail)[-1500:]}"
        result.input = base64.b64encode(last.read_bytes()).decode() if last.exists() else ""
    if result.finding:
        data = base64.b64decode(result.input)
        (keep / f"{name}-{zlib.crc32(data):08x}").write_bytes(data)
        (keep / f"{name}-{zlib.crc32(data):08x}.txt").write_text(f"{result.finding}\n\n{done.stderr[-6000:]}")
    last.unlink(missing_ok=True)
    return result


def main(arguments: Iterable[str]) -> int:
    """The command; status 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "stormproof-findings")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--try", dest="input", type=Path, help="give a target the input in this file, and nothing else")
    options = parser.parse_args(list(arguments))
    sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "tests/broker"), str(ROOT / "tests/checkers"), str(ROOT / "tests"),
                    str(ROOT / "tests/qpid")]  # fmt: skip
    from hostile_targets import TARGETS

    if options.input is not None:
        TARGETS[options.targets[0]]().run(options.input.read_bytes())
        return 0
    if options.here is not None:
        (name,) = options.targets
        with options.here.open("r+b" if options.here.exists() else "w+b", buffering=0) as file:

            def note(data: bytes) -> None:
                os.pwrite(file.fileno(), data, 0)
                os.ftruncate(file.fileno(), len(data))

            print(fuzz(name, TARGETS[name](), options.seconds, options.seed, note).line(), flush=True)
        os._exit(0)  # threads of a target may still be there
    found = False
    for name in options.targets or TARGETS:
        result = in_child(name, options.seconds, options.seed, options.keep)
        print(result.line(), flush=True)
        found = found or bool(result.finding)
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
