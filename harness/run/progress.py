"""The progress of a test on the screen: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.status import Status

from stormproof.text import escaped

Event = Mapping[str, Any]

PHASES = {
    "provision": "making the nodes",
    "start": "starting the brokers",
    "first": "operations before the load",
    "main": "load and faults",
    "heal": "healing everything, waiting until the cluster is healthy",
    "repair": "doing what an operator would",
    "settle": "letting clients settle what was confirmed to them",
    "drain": "reading to the end",
    "dead-letters": "reading the dead-letter queues",
    "depth": "reading what is left",
    "check": "checking with Spark",
    "teardown": "tearing down",
    "report": "writing the report",
}
_TIMED = "main"
"""The phase with a known duration."""
_LOG_INTERVAL = 5.0
_PIPE_WIDTH = 250


def console(errors: bool = False) -> Console:
    """Return a console for standard output, or error. It is as wide as the terminal. For a file or a pipe it is so wide
    that usual lines are neither wrapped nor cropped."""
    stream = sys.stderr if errors else sys.stdout
    return Console(stderr=errors, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


class RunQueue:
    """The position in a sequence of runs, and an estimate of the remaining time from the completed runs."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._start = clock()

    def place(self, number: int) -> str:
        """Return the position as ``run 3 of 20``."""
        return f"run {number} of {self._count}"

    def line(self, number: int) -> str:
        """Return ``run 3 of 20, about 12 min left`` for a run that begins. The first run has no estimate."""
        done = number - 1
        left = (self._clock() - self._start) / done * (self._count - done) if done else None
        return self.place(number) + (f", about {duration(left)} left" if left is not None else "")


def duration(seconds: float) -> str:
    """Return a duration for people: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 99.5:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def progress(quiet: bool, time_limit: float, place: str = "") -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows the test runner's events. ``quiet`` keeps standard output free for a result.

    ``time_limit`` is the duration of load and faults in seconds. ``place`` is the position of this run among several.
    """
    to = console(quiet)
    if not to.is_terminal:
        yield _plain(sys.stderr if quiet else sys.stdout, time_limit)
        return
    with to.status("", spinner="dots") as status:
        yield _live(status, time_limit, place)


def _plain(file: Any, time_limit: float) -> Callable[[Event], None]:
    last = 0.0
    text_of = _texts(time_limit)

    def show(event: Event) -> None:
        nonlocal last
        text = text_of(event)
        if event["event"] == "progress":
            if time.monotonic() - last < _LOG_INTERVAL:
                return
            last = time.monotonic()
        if text:
            print(_escaped(text), file=file, flush=True)

    return show


def _live(status: Status, time_limit: float, place: str) -> Callable[[Event], None]:
    before = f"{place}: " if place else ""
    phase = before
    text_of = _texts(time_limit)

    def show(event: Event) -> None:
        nonlocal phase
        text = text_of(event)
        if event["event"] == "phase":
            phase = text = f"{before}{text}"
        elif event["event"] == "progress":
            text = f"{phase}  {text}"
        elif text:
            status.console.print(_escaped(text))
            return
        status.update(text)

    return show


def _escaped(text: str) -> str:
    """Return a text of one or more lines, escaped so that no word from a system or a client can move the cursor."""
    return "\n".join(map(escaped, text.split("\n")))


def _texts(time_limit: float) -> Callable[[Event], str]:
    """Return a function that describes the events of one run, called in their order."""
    end: float | None = None

    def text(event: Event) -> str:
        nonlocal end
        match event["event"]:
            case "phase":
                end = event["time"] / 1e9 + time_limit if event["name"] == _TIMED else None
                return PHASES.get(event["name"], str(event["name"]))
            case "progress":
                seconds = event["time"] / 1e9
                rest = None if end is None else end - seconds
                left = f"{duration(rest)} left  " if rest is not None and rest > 0 else ""
                return f"{seconds:5.1f} s  {left}{event['ok']} ok, {event['fail']} fail, {event['info']} unknown"
            case "fault":
                return f"{event['time'] / 1e9:5.1f} s  {event['text']}"
            case "warning":
                return f"warning: {event['text']}"
        return ""

    return text
