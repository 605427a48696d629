"""The command ``porcupine``.

Its status is a verdict only if there is one. Only ``_status``, which holds the result, returns 0, 1 and 2, and 1 only
with a witness. Any other end of the command, in any layer, ends it with 3 and one line on stderr. So no module whose
import may fail is imported before ``main`` can catch the error.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from .formats import History
    from .models import CompiledModel
    from .types import Operation, Result

EXIT_OK, EXIT_ILLEGAL, EXIT_UNKNOWN, EXIT_NO_VERDICT = 0, 1, 2, 3
MAX_LINE = 1000
"""Longest line on stderr, in characters."""


class _Leave(SystemExit):
    """The parser has printed everything; any other SystemExit is an error."""


class _Parser(argparse.ArgumentParser):
    """A parser whose status for wrong usage never looks like a verdict."""

    def exit(self, status: int = 0, message: str | None = None) -> None:  # type: ignore[override]
        raise _Leave(status)

    def error(self, message: str) -> None:  # type: ignore[override]
        _complain(f"{message}; see porcupine check --help")
        self.exit(EXIT_NO_VERDICT)


class _NoOutput(Exception):
    """The findings cannot be written to stdout."""


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0, and finite")
    return value


def _size(text: str) -> int:
    from .formats.memory import read_size

    try:
        return read_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from .check import DEFAULT_MEMORY
    from .formats import FAILED_CAS, FORMATS, MAX_HISTORY
    from .models import MODELS

    top = _Parser(prog="porcupine", description="Is a history of concurrent operations linearizable?")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    check = commands.add_parser(
        "check",
        help="check files of histories",
        description="Prints FILE: ok|illegal|unknown. Exit status: 0 all ok, 1 illegal, 2 unknown, 3 no verdict "
        "(bad input, wrong usage, anything that went wrong).",
    )
    check.add_argument("--model", required=True, help=f"one of {', '.join(MODELS)}")
    check.add_argument("--format", help=f"one of {', '.join(FORMATS)}; told from the content by default")
    check.add_argument(
        "--initial",
        metavar="VALUE",
        help="the first value of a register (JSON or EDN; default null); of a multi-register also a map by key",
    )
    check.add_argument(
        "--failed-cas",
        choices=FAILED_CAS,
        help="what a cas that ends fail means; by default it did not match in a jepsen-log, and did not happen in "
        "all other formats",
    )
    check.add_argument(
        "--pass-over",
        type=_names,
        default=frozenset(),
        metavar="NAME,...",
        help="processes that are no clients, besides nemesis; their lines are counted and passed over",
    )
    check.add_argument("--timeout", type=_positive, metavar="S", help="seconds per file, then the verdict is unknown")
    check.add_argument(
        "--memory",
        type=_positive,
        metavar="MB",
        default=DEFAULT_MEMORY / 1e6,
        help="for the search (default %(default).0f)",
    )
    check.add_argument(
        "--max-history",
        type=_size,
        metavar="SIZE",
        default=MAX_HISTORY,
        help="memory that reading a file may take, as 500M or 6G (default 4G); what would take more is refused",
    )
    check.add_argument(
        "--allow-empty",
        action="store_true",
        help="a file without operations is ok; by default its verdict is unknown, since nothing was judged",
    )
    check.add_argument("--minimal", action="store_true", help="show a minimal illegal sub-history")
    check.add_argument(
        "--html", type=Path, metavar="OUT", help="write a picture; a directory if several files are given"
    )
    check.add_argument("files", nargs="+", metavar="FILE")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, or raise SystemExit with it for help and wrong usage.

    Without ``arguments``, those of this process count; if its memory is limited, a child process does the work.
    """
    if arguments is not None:
        return _main(arguments)
    from .supervised import supervised

    return supervised(lambda: _main(None), _complain)


def _main(arguments: Sequence[str] | None) -> int:
    leave: _Leave | None = None
    try:
        try:
            _escape_what_can_t_be_written()
            options = parser().parse_args(arguments)
        except _Leave as end:
            leave = end
            status = EXIT_NO_VERDICT if end.code else EXIT_OK
        else:
            status = _run(options)
        _flush()
    except BaseException as error:
        status = EXIT_NO_VERDICT
        leave = None
        with contextlib.suppress(BaseException):  # even an error in writing the message must not change the status
            _abandon(sys.stdout) if isinstance(error, _NoOutput) else None
            _complain(_words(error))
    if leave is not None:
        raise SystemExit(status)
    return status


def _run(options: argparse.Namespace) -> int:
    from .formats import FORMATS
    from .models import model_named
    from .types import PorcupineError

    try:
        model_named(options.model, _initial(options.initial, ""))
        if options.format is not None and options.format not in FORMATS:
            raise PorcupineError(f'unknown format "{options.format}"; known: {", ".join(FORMATS)}')
    except PorcupineError as error:
        _complain(str(error))
        return EXIT_NO_VERDICT
    status = {_check_file(file, options) for file in options.files}
    for worst in (EXIT_NO_VERDICT, EXIT_ILLEGAL, EXIT_UNKNOWN):
        if worst in status:
            return worst
    return EXIT_OK


def _check_file(file: str, options: argparse.Namespace) -> int:
    """Return the status of one file. An error in this file does not stop the check of other files."""
    try:
        return _verdict_on(file, options)
    except _NoOutput:
        raise
    except Exception as error:
        _complain(_words(error, file))
        return EXIT_NO_VERDICT


def _verdict_on(file: str, options: argparse.Namespace) -> int:
    from .check import check_operations_verbose
    from .formats import load_history
    from .models import model_named
    from .types import PorcupineError

    began = time.monotonic()
    history = load_history(
        file,
        model_named(options.model),
        options.format,
        failed_cas=options.failed_cas,
        pass_over=options.pass_over,
        max_history=options.max_history,
    )
    read = time.monotonic() - began
    model = model_named(options.model, _initial(options.initial, history.format))
    try:
        result = check_operations_verbose(
            model, history.operations, timeout=options.timeout, max_memory=int(options.memory * 1e6)
        )
    except PorcupineError as error:
        raise PorcupineError(_where(error, file, model, history)) from None
    status = _status(result)
    if not history.operations and not options.allow_empty:
        _say(f"{file}: unknown  {_nothing(history)}; --allow-empty takes it for ok")
        return EXIT_UNKNOWN
    _say(_line(file, history, result, read))
    if result.illegal is not None:
        _say(f"  {result.illegal.reason}")
        if options.minimal:
            _say_minimal(model, history.operations, options.timeout)
    if options.html is not None:
        _write_html(model, history.operations, result, file, options)
    return status


def _status(result: Result) -> int:
    """Return the exit status of a verdict; *illegal* requires the partition that shows it, and the reason."""
    from .types import CheckResult

    if result.verdict is CheckResult.ILLEGAL:
        witness = result.illegal
        if witness is None or not witness.reason:
            raise AssertionError("illegal without a witness; please report this")
        return EXIT_ILLEGAL
    return {CheckResult.OK: EXIT_OK, CheckResult.UNKNOWN: EXIT_UNKNOWN}[result.verdict]


def _line(file: str, history: History, result: Result, read: float) -> str:
    parts = len(result.partitions)
    passed = history.passed_over
    return (
        f"{file}: {result.verdict.value}  {result.operations} operations, "
        f"{parts} partition{'' if parts == 1 else 's'}, {passed} line{'' if passed == 1 else 's'} passed over, "
        f"{result.steps} steps, read {read:.3f} s, checked {result.seconds:.3f} s"
    )


def _where(error: Exception, file: str, model: CompiledModel, history: History) -> str:
    """Describe the error in a file's operations, with the line of the first operation that is wrong by itself."""
    from .types import PorcupineError

    for operation, line in zip(history.operations, history.lines, strict=True):
        try:
            model.encode([operation])
        except PorcupineError as first:
            return f"{file}:{line}: value: {first}"
    return f"{file}: {error}"


def _nothing(history: History) -> str:
    """Describe the contents of a file that has no operations to judge."""
    passed, failed = history.passed_over, history.did_not_happen
    parts = ["no operation to judge"]
    if passed:
        parts.append(f"{passed} line{'' if passed == 1 else 's'} passed over, the first: {history.first_passed_over}")
    if failed:
        parts.append(f"{failed} operation{'' if failed == 1 else 's'} that did not happen")
    return ", ".join(parts)


def _say_minimal(model: CompiledModel, operations: list[Operation], timeout: float | None) -> None:
    from .check import operation_text
    from .minimal import minimal_history

    smallest = minimal_history(model, operations, timeout=timeout or 10.0)
    proven = "minimal" if smallest.proven else "small (time ran out before it was proven minimal)"
    _say(f"  a {proven} illegal history of {len(smallest.operations)} operations:")
    for i in smallest.operations:
        _say(f"    {operation_text(model, operations[i])}")


def _write_html(
    model: CompiledModel, operations: list[Operation], result: Result, file: str, options: argparse.Namespace
) -> None:
    from .types import PorcupineError
    from .visual import write_html

    out: Path = options.html
    try:
        if len(options.files) > 1:
            out.mkdir(parents=True, exist_ok=True)
            out = out / (Path(file).name + ".html")
        write_html(out, model, operations, result, title=file)
    except OSError as error:
        raise PorcupineError(f"{out}: {error.strerror or error}") from None


def _initial(text: str | None, format: str) -> Any:
    """Parse the first value in the format of the file.

    For a file of JSON, a value in EDN is converted to JSON's types. Without a file, either format is accepted.
    """
    from .formats import EDN_FORMATS, parse_edn, parse_json
    from .types import PorcupineError
    from .values import as_json

    if text is None:
        return None
    if format in EDN_FORMATS:
        try:
            return None if text == "null" else parse_edn(text, "--initial")
        except PorcupineError as error:
            raise PorcupineError(f"{error}; the file is EDN, so the first value must be, too") from None
    try:
        return parse_json(text)
    except ValueError:
        return as_json(parse_edn(text, "--initial"))


def _words(error: BaseException, file: str = "") -> str:
    """Describe an error to the user."""
    from .types import PorcupineError

    if isinstance(error, PorcupineError):
        return str(error)
    told = {MemoryError: "out of memory", RecursionError: "nested too deeply", KeyboardInterrupt: "interrupted"}
    what = told.get(type(error)) or (
        str(error) if isinstance(error, _NoOutput) else f"{type(error).__name__}: {error}".removesuffix(": ")
    )
    return f"{file}: {what}" if file else what


def _shown(text: str) -> str:
    """Return a line in which text from a file cannot move the cursor: control characters are escaped."""
    return text if text.isprintable() else "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _say(text: str) -> None:
    """Write a line to stdout."""
    text = _shown(text)
    if sys.stdout is None:
        raise _NoOutput("stdout is closed")
    try:
        sys.stdout.write(f"{text}\n")
    except (OSError, ValueError) as error:
        raise _NoOutput(f"stdout: {getattr(error, 'strerror', None) or error}") from None


def _flush() -> None:
    """Flush stdout: the remaining buffer may contain a line that cannot be written."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        raise _NoOutput(f"stdout: {getattr(error, 'strerror', None) or error}") from None


def _complain(text: str) -> None:
    """Write one line to stderr, if possible."""
    line = _shown(" ".join(f"porcupine: {text}".split()))
    if len(line) > MAX_LINE:
        line = line[: MAX_LINE - 3] + "..."
    try:
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        _abandon(sys.stderr)


def _abandon(stream: TextIO | None) -> None:
    """Redirect a stream to nothing: at its end, Python flushes its streams and exits with status 120 if that fails."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def _escape_what_can_t_be_written() -> None:
    """Escape characters that the terminal's encoding, or any encoding, lacks (half of a surrogate pair)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
