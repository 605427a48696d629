"""A prompt like that of ``icestormadmin``: commands one after the other, by the names in its manual."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from stormproof.contracts.system import AdminAccess, AdminCommand
from stormproof.errors import StormproofError, UsageError

PROMPT = ">>> "
LEAVE = ("exit", "quit")


@dataclass(frozen=True)
class _Word:
    """A command of the prompt: its usage, its help text, and the mapping of its arguments to an admin command's."""

    usage: str
    help: str
    command: str
    least: int
    most: int | None
    given: Callable[[Sequence[str]], Mapping[str, Any]]


_WORDS: Mapping[str, _Word] = {
    "create": _Word("create TOPIC...", "make topics", "topic create", 1, None, lambda a: {"names": list(a)}),
    "destroy": _Word("destroy TOPIC...", "end topics", "topic destroy", 1, None, lambda a: {"names": list(a)}),
    "link": _Word("link FROM TO [COST]", "forward the events of FROM to TO, up to a cost", "topic link", 2, 3,
                  lambda a: {"topic": a[0], "target": a[1], "cost": _number(a[2]) if len(a) > 2 else 0}),
    "unlink": _Word("unlink FROM TO", "end a link", "topic unlink", 2, 2,
                    lambda a: {"topic": a[0], "target": a[1]}),
    "links": _Word("links TOPIC", "a topic's links, with their costs", "topic list", 1, 1, lambda a: {"topic": a[0]}),
    "topics": _Word("topics", "the names of all topics", "topic list", 0, 0, lambda a: {"topic": ""}),
    "subscribers": _Word("subscribers TOPIC", "a topic's subscribers", "topic subscribers", 1, 1,
                         lambda a: {"topic": a[0]}),
    "unsubscribe": _Word("unsubscribe TOPIC SUBSCRIBER", "end a subscription", "topic unsubscribe", 2, 2,
                         lambda a: {"topic": a[0], "subscriber": a[1]}),
    "replica": _Word("replica", "the state of every replica", "replica", 0, 0, lambda a: {}),
}  # fmt: skip


def run_prompt(access: AdminAccess, commands: Iterable[AdminCommand], execute: str = "",
               source: TextIO | None = None) -> Iterator[str]:
    """Yield the output of each command; a failed one is reported, and the next one follows.

    Args:
        commands: the admin commands that carry them out.
        execute: commands to run instead of typed ones, separated by semicolons.
        source: the stream from which they are read; standard input by default.
    """
    ours = {command.name: command for command in commands}
    texts = execute.split(";") if execute else _typed(source or sys.stdin)
    for text in texts:
        try:
            words = shlex.split(text, comments=True)
            if not words:
                continue
            if words[0] in LEAVE:
                return
            yield from _carry_out(access, ours, words)
        except ValueError as error:
            yield f"error: {error}"
        except StormproofError as error:
            yield f"error: {error}"


def _typed(source: TextIO) -> Iterator[str]:
    """Yield the lines of a prompted user, or of a file."""
    if not source.isatty():
        yield from source
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited, and called back
    while True:
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _carry_out(access: AdminAccess, ours: Mapping[str, AdminCommand], words: Sequence[str]) -> Iterator[str]:
    name, *arguments = words
    if name == "help":
        width = max(len(word.usage) for word in _WORDS.values())
        for each in _WORDS.values():
            yield f"{each.usage:<{width}}  {each.help}"
        yield f"{'help, ' + ', '.join(LEAVE):<{width}}  this list; end (as does the end of input)"
        return
    word = _WORDS.get(name)
    if word is None:
        raise UsageError(f"unknown command {name!r}; `help` lists all")
    if len(arguments) < word.least or (word.most is not None and len(arguments) > word.most):
        raise UsageError(f"write it as: {word.usage}")
    yield from ours[word.command].run(access, word.given(arguments))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"a cost is a whole number, not {text!r}")
    return int(text)
