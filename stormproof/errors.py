"""Errors that a person caused or can mend, and the exit status each ends with."""

from __future__ import annotations

import signal

EXIT_VALID = 0
EXIT_INVALID = 1
EXIT_UNKNOWN = 2
EXIT_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_OF = {"valid": EXIT_VALID, "unknown": EXIT_UNKNOWN, "invalid": EXIT_INVALID}


class StormproofError(Exception):
    """A failure told to the user in one line: what is wrong, where, and what to do.

    The command line prints ``str(error)`` without a traceback and exits with status 3.
    """


class UsageError(StormproofError):
    """The user asked for something that does not exist or does not fit together."""


class BackendError(StormproofError):
    """The machine or a node did not do what the backend asked of it."""


class SparkFailed(StormproofError):
    """Spark did not start or a job of it failed."""


class HistoryError(StormproofError):
    """A stored history, ledger or run folder can't be read."""


def errors_of_others() -> tuple[type[BaseException], ...]:
    """What code of others may raise without ending the harness; Ctrl-C is none of it where it may be a person's."""
    by_hand = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (Exception, SystemExit) if by_hand else (Exception, SystemExit, KeyboardInterrupt)
