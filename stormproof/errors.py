"""Errors that a person caused or can repair, and the exit status of each."""

from __future__ import annotations

import signal

EXIT_VALID = 0
EXIT_INVALID = 1
EXIT_UNKNOWN = 2
EXIT_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_OF = {"valid": EXIT_VALID, "unknown": EXIT_UNKNOWN, "invalid": EXIT_INVALID}


class StormproofError(Exception):
    """A failure reported to the user in one line: the problem, its place, and the remedy.

    The command line prints ``str(error)`` without a traceback and exits with status 3.
    """


class UsageError(StormproofError):
    """The user asked for something that does not exist, or combined things that do not fit together."""


class BackendError(StormproofError):
    """The machine or a node did not carry out a request of the backend."""


class SparkFailed(StormproofError):
    """Spark did not start or a job of it failed."""


class HistoryError(StormproofError):
    """A stored history, ledger or run folder can't be read."""


def errors_of_others() -> tuple[type[BaseException], ...]:
    """Return the exceptions of foreign code that must not end the harness. KeyboardInterrupt is not among them if a
    person's Ctrl-C can raise it.
    """
    by_hand = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (Exception, SystemExit) if by_hand else (Exception, SystemExit, KeyboardInterrupt)
