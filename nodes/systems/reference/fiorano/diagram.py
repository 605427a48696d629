"""The transitions of fiorano servers as a diagram and a table, for the page of the design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodes.reference.designs.fiorano.states import DEAD
from nodes.reference.designs.fiorano.transitions import REPLICATED, SHARED, Transition

BEGIN, END = "<!-- begin of {} -->", "<!-- end of {} -->"
TABLES = {"replicated": REPLICATED, "shared": SHARED}


def with_transitions(page: str) -> str:
    """Insert the diagram and the table of each mode into the page, between the marks that name the mode.

    Raises:
        ValueError: a mark is missing.
    """
    for mode, table in TABLES.items():
        begin, end = BEGIN.format(mode), END.format(mode)
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page has no place {begin} ... {end}")
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = "\n".join([before + begin, *_section(table), end + after])
    return page


def _section(table: Sequence[Transition]) -> Iterator[str]:
    yield from ("", "```mermaid", "stateDiagram-v2")
    for source, target in dict.fromkeys((line.state, line.to) for line in table):
        numbers = [str(number) for number, line in enumerate(table, 1) if (line.state, line.to) == (source, target)]
        yield f"    {'[*]' if source == DEAD else source} --> {target}: {', '.join(numbers)}"
    yield from ("```", "", "| | from | to | when | |", "| --- | --- | --- | --- | --- |")
    for number, line in enumerate(table, 1):
        said = f"*ours*: {line.sentence}" if line.ours else f"\"{line.sentence}\""
        yield f"| {number} | {line.state} | {line.to} | {_when(line)} | {said} |"
    yield ""


def _when(line: Transition) -> str:
    """Describe all conditions of a transition in words."""
    words = []
    if line.channel is not None:
        words.append("channel" if line.channel else "no channel")
    if line.peer:
        words.append(f"peer {' or '.join(line.peer)}")
    if line.peer_before:
        words.append(f"which was {' or '.join(line.peer_before)}")
    if line.lock is not None:
        words.append("lock" if line.lock else "no lock")
    words += line.facts
    words += [f"not {fact}" for fact in line.unless]
    return ", ".join(words) or "at its start"
