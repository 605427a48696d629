"""What a person sees while a test runs: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.status import Status

Event = Mapping[str, Any]

PHASES = {
    "provision": "making the nodes",
    "start": "starting the brokers",
    "main": "load and faults",
    "heal": "healing everything, waiting until the cluster is healthy",
    "repair": "doing what an operator would",
    "settle": "letting clients settle what was confirmed to them",
    "drain": "reading to the end",
    "depth": "reading what is left",
    "check": "checking with Spark",
    "teardown": "tearing down",
    "report": "writing the report",
}
_LOG_INTERVAL = 5.0
_PIPE_WIDTH = 250


def console(errors: bool = False) -> Console:
    """Standard output, or error: as wide as the terminal; a file or a pipe has no width to wrap or crop at."""
    stream = sys.stderr if errors else sys.stdout
    return Console(stderr=errors, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A function that shows the lab's events; ``quiet`` keeps standard output free for a result."""
    to = console(quiet)
    if not to.is_terminal:
        yield _plain(sys.stderr if quiet else sys.stdout)
        return
    with to.status("", spinner="dots") as status:
        yield _live(status)


def _plain(file: Any) -> Callable[[Event], None]:
    last = 0.0

    def show(event: Event) -> None:
        nonlocal last
        if event["event"] == "progress":
            if time.monotonic() - last < _LOG_INTERVAL:
                return
            last = time.monotonic()
        text = _text(event)
        if text:
            print(text, file=file, flush=True)

    return show


def _live(status: Status) -> Callable[[Event], None]:
    phase = ""

    def show(event: Event) -> None:
        nonlocal phase
        text = _text(event)
        if event["event"] == "phase":
            phase = text
        elif event["event"] == "progress":
            text = f"{phase}  {text}"
        elif text:
            status.console.print(text)
            return
        status.update(text)

    return show


def _text(event: Event) -> str:
    match event["event"]:
        case "phase":
            return PHASES.get(event["name"], str(event["name"]))
        case "progress":
            seconds = event["time"] / 1e9
            return f"{seconds:5.1f} s  {event['ok']} ok, {event['fail']} fail, {event['info']} unknown"
        case "fault":
            return f"{event['time'] / 1e9:5.1f} s  {event['text']}"
        case "warning":
            return f"warning: {event['text']}"
    return ""
