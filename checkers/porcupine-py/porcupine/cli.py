"""The command ``porcupine``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .check import DEFAULT_MEMORY, check_operations_verbose
from .formats import FORMATS, read_history
from .models import MODELS, CompiledModel, model_named
from .types import CheckResult, Operation, PorcupineError, Result

EXIT_OK, EXIT_ILLEGAL, EXIT_UNKNOWN, EXIT_BAD_INPUT = 0, 1, 2, 3


class _Parser(argparse.ArgumentParser):
    """Wrong usage is bad input too."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(EXIT_BAD_INPUT, f"porcupine: {message}; see porcupine check --help\n")


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = _Parser(prog="porcupine", description="Is a history of concurrent operations linearizable?")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    check = commands.add_parser(
        "check",
        help="check files of histories",
        description="Prints FILE: ok|illegal|unknown. Exit status: 0 all ok, 1 illegal, 2 unknown, 3 bad input.",
    )
    check.add_argument("--model", required=True, help=f"one of {', '.join(MODELS)}")
    check.add_argument("--format", help=f"one of {', '.join(FORMATS)}; told from the content by default")
    check.add_argument("--timeout", type=_seconds, metavar="S", help="seconds per file, then the verdict is unknown")
    check.add_argument(
        "--memory",
        type=_seconds,
        metavar="MB",
        default=DEFAULT_MEMORY / 1e6,
        help="for the search (default %(default).0f)",
    )
    check.add_argument("--minimal", action="store_true", help="show a minimal illegal sub-history")
    check.add_argument(
        "--html", type=Path, metavar="OUT", help="write a picture; a directory if several files are given"
    )
    check.add_argument("files", nargs="+", metavar="FILE")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = parser().parse_args(arguments)
    try:
        model = model_named(options.model)
        if options.format is not None and options.format not in FORMATS:
            raise PorcupineError(f'unknown format "{options.format}"; known: {", ".join(FORMATS)}')
    except PorcupineError as error:
        print(f"porcupine: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    status = {_check_file(model, file, options) for file in options.files}
    for worst in (EXIT_BAD_INPUT, EXIT_ILLEGAL, EXIT_UNKNOWN):
        if worst in status:
            return worst
    return EXIT_OK


def _check_file(model: CompiledModel, file: str, options: argparse.Namespace) -> int:
    began = time.monotonic()
    try:
        operations = read_history(file, model, options.format)
        read = time.monotonic() - began
        result = check_operations_verbose(
            model, operations, timeout=options.timeout, max_memory=int(options.memory * 1e6)
        )
        print(_line(file, result, read))
        if result.illegal is not None:
            print(f"  {result.illegal.reason}")
            if options.minimal:
                _print_minimal(model, operations, options.timeout)
        if options.html is not None:
            _write_html(model, operations, result, file, options)
    except PorcupineError as error:
        print(f"porcupine: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return {CheckResult.OK: EXIT_OK, CheckResult.ILLEGAL: EXIT_ILLEGAL}.get(result.verdict, EXIT_UNKNOWN)


def _line(file: str, result: Result, read: float) -> str:
    parts = len(result.partitions)
    return (
        f"{file}: {result.verdict.value}  {result.operations} operations, "
        f"{parts} partition{'' if parts == 1 else 's'}, "
        f"{result.steps} steps, read {read:.3f} s, checked {result.seconds:.3f} s"
    )


def _print_minimal(model: CompiledModel, operations: list[Operation], timeout: float | None) -> None:
    from .check import operation_text
    from .minimal import minimal_history

    smallest = minimal_history(model, operations, timeout=timeout or 10.0)
    proven = "minimal" if smallest.proven else "small (time ran out before it was proven minimal)"
    print(f"  a {proven} illegal history of {len(smallest.operations)} operations:")
    for i in smallest.operations:
        print(f"    {operation_text(model, operations[i])}")


def _write_html(
    model: CompiledModel, operations: list[Operation], result: Result, file: str, options: argparse.Namespace
) -> None:
    from .visual import write_html

    out: Path = options.html
    try:
        if len(options.files) > 1:
            out.mkdir(parents=True, exist_ok=True)
            out = out / (Path(file).name + ".html")
        write_html(out, model, operations, result, title=file)
    except OSError as error:
        raise PorcupineError(f"{out}: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(main())
