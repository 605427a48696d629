"""Questions to other replicas and their answers, over the links of ``nodes.reference.replication.links``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.reference.api import Broker
from nodes.reference.designs.icestorm.options import IceStormOptions
from nodes.reference.designs.icestorm.requests import is_answer, is_request
from nodes.reference.designs.icestorm.topics import is_change, is_dump
from nodes.reference.replication.handshake import LinkError, encode_frame
from nodes.reference.replication.links import Links
from nodes.timeouts import within

_ASK, _ANSWER = "ask", "answer"
_BROKEN = object()
"""Replaces the answer to a question whose link broke."""

Answerer = Callable[[str, str, list[Any]], Any]
Shape = Callable[[Any], bool]


def text(value: Any) -> bool:
    """Tell whether the value is a string."""
    return isinstance(value, str)


def whole(value: Any) -> bool:
    """Tell whether the value is a non-negative integer."""
    return type(value) is int and value >= 0


def texts(value: Any) -> bool:
    """Tell whether the value is a list of strings."""
    return isinstance(value, list) and all(map(text, value))


def stamp(value: Any) -> bool:
    """Tell whether the value is the stamp of a database."""
    return (isinstance(value, list) and len(value) == 3 and whole(value[0]) and whole(value[1])
            and type(value[2]) is float)


def or_none(shape: Shape) -> Shape:
    """Return a shape that accepts None in addition to this shape."""
    return lambda value: value is None or shape(value)


def _yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


QUESTIONS: Mapping[str, tuple[tuple[Shape, ...], Shape]] = {
    "are-you-coordinator": ((), _yes_or_no),
    "are-you-there": ((text,), _yes_or_no),
    "are-you-mine": ((text,), _yes_or_no),
    "invitation": ((text, text), _yes_or_no),
    "accept": ((text, texts, whole), _yes_or_no),
    "promised": ((), whole),
    "promise": ((text, whole), or_none(stamp)),
    "database": ((text,), or_none(is_dump)),
    "install": ((text, whole, stamp, or_none(is_dump)), _yes_or_no),
    "ready": ((text, whole, texts, whole), _yes_or_no),
    "update": ((text, whole, stamp, is_change), _yes_or_no),
    "request": ((is_request,), is_answer),
}
"""Every question: the shapes of its arguments and of its answer. A value of another shape was not sent by a replica."""


class PeerFailed(Exception):
    """A question could not be sent to a peer, or was not answered in time.

    ``sent`` is false when the question certainly never left this replica.
    """

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@dataclass(eq=False)
class _Asked:
    """A question to a peer that waits for its answer. ``broken`` is the number of links to the peer that had broken
    before this one; ``kept_by`` is the question's deadline, if any."""

    peer: str
    answer: asyncio.Future[Any]
    broken: int
    kept_by: str


class Peers:
    """The other replicas. ``answer`` is called with (peer, question, arguments) of each question that arrives;
    ``links`` creates the links to them."""

    def __init__(self, broker: Broker, options: IceStormOptions, answer: Answerer,
                 links: Callable[..., Links] = Links) -> None:
        config = broker.config
        self.names = [name for name in config.peers if name != config.node]
        self._answer = answer
        self._timeout = options.response_timeout
        self._number = 0
        self._runtime = broker.runtime
        self._broker = broker
        self._waiting: dict[str, dict[int, asyncio.Future[Any]]] = {name: {} for name in self.names}
        self.open_questions: dict[int, _Asked] = {}
        self._round = 0
        self.rounds: dict[int, None] = {}
        """Rounds of questions to several peers that are under way."""
        self._times = dict.fromkeys(QUESTIONS, float("-inf"))
        """The time at which each question was last asked."""
        self._failures = dict.fromkeys(self.names, 0)
        self._latest = dict.fromkeys(self.names, 0)
        """The number of the last question that each peer has answered."""
        self.cut_alive: list[tuple[str, str]] = []
        """Peers whose link was cut for a missing answer although they had answered a later question."""
        self.broken = dict.fromkeys(self.names, 0)
        self._unanswered: dict[str, int] = {}
        """Peers that did not answer in time, each with the number of links to it that had broken by then."""
        # Silence proves nothing here: a replica counts as failed only if it does not answer a question.
        self._links = links(broker.runtime, self, config.node, config.peers, options.cluster,
                            silence=2 * options.response_timeout, retry=options.response_timeout / 4,
                            secret=str(config.options.get("secret", "")))

    async def start(self) -> None:
        """Listen and dial; raises OSError when the port can't be opened."""
        await self._links.start()

    def missing(self) -> list[str]:
        """Return the replicas without a link."""
        return self._links.missing()

    def linked(self) -> dict[str, int]:
        """Return the replicas to which there is a link, each with the number of links that have broken before."""
        missing = self._links.missing()
        return {name: self.broken[name] for name in self.names if name not in missing}

    def silent(self) -> list[str]:
        """Return the replicas that did not answer in time on a link that still exists."""
        return [name for name, broken in self.linked().items() if self._unanswered.get(name) == broken]

    def failures(self) -> Mapping[str, int]:
        """Return the number of questions that each peer has not answered."""
        return dict(self._failures)

    def asked(self, question: str) -> float:
        """Return the time at which this question was last asked of any peer."""
        return self._times[question]

    async def stop(self) -> None:
        """Close all links."""
        await self._links.stop()

    async def ask(self, peer: str, question: str, *arguments: Any, timeout: float | None = None,
                  patient: bool = False, shape: Shape | None = None) -> Any:
        """Ask a peer and return its answer, which has ``shape`` or else the question's shape.

        ``patient``: wait as long as the link lasts; other questions check whether the peer is alive.

        Raises:
            PeerFailed: the peer has no link, the link broke, or no answer arrived within ``timeout`` seconds (default:
                the response time-out). The link of a peer that does not answer is cut.
        """
        self._number += 1
        number = self._number
        self._times[question] = self._runtime.now()
        if not self._links.send(peer, encode_frame([_ASK, number, question, list(arguments)])):
            self._failures[peer] += 1
            raise PeerFailed(f"no link to {peer}", sent=False)
        future = self._waiting[peer][number] = asyncio.get_running_loop().create_future()
        broken = self.broken[peer]
        kept_by = "" if patient else "question" if timeout is None else "long-question"
        self.open_questions[number] = _Asked(peer, future, broken, kept_by)
        try:
            limit = self._timeout if timeout is None else timeout
            async with within(None if patient else limit):
                answer = await future
            if answer is _BROKEN:
                raise PeerFailed(f"the link to {peer} broke", sent=True)
            if not (shape or QUESTIONS[question][1])(answer):
                self._links.cut(peer, reason=f"no answer to {question}: {answer!r:.80}")
                raise PeerFailed(f"{peer} does not answer {question} as a replica does", sent=True)
            return answer
        except PeerFailed:
            self._failures[peer] += 1
            raise
        except TimeoutError:
            self._failures[peer] += 1
            if future.cancelled() and self.broken[peer] == broken and self._latest[peer] > number:
                self.cut_alive.append((peer, question))
            self._unanswered[peer] = broken
            self._links.cut(peer, reason=f"no answer to {question}")
            raise PeerFailed(f"{peer} does not answer", sent=True) from None
        finally:
            self._waiting[peer].pop(number, None)
            del self.open_questions[number]

    async def ask_all(self, peers: Iterable[str], question: str, *arguments: Any,
                      timeout: float | None = None) -> dict[str, Any]:
        """Return the answers of those peers that gave one."""
        found: dict[str, Any] = {}

        async def ask(peer: str) -> None:
            # An exception that escaped would be reported as never retrieved if the process ended before it was read.
            with contextlib.suppress(PeerFailed):
                found[peer] = await self.ask(peer, question, *arguments, timeout=timeout)

        asked = list(peers)
        self._round += 1
        number = self._round
        if timeout is None:
            self.rounds[number] = None
        try:
            await asyncio.gather(*(ask(peer) for peer in asked))
        finally:
            self.rounds.pop(number, None)
        return {peer: found[peer] for peer in asked if peer in found}

    # Link events.

    def link_up(self, peer: str) -> None:
        """Do nothing: information is exchanged by questions only."""

    def link_down(self, peer: str) -> None:
        """Fail all outstanding questions on this link: their answers can't arrive any longer."""
        self.broken[peer] += 1
        waiting, self._waiting[peer] = self._waiting[peer], {}
        for future in waiting.values():
            if not future.done():
                future.set_result(_BROKEN)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Answer questions at once, and pass answers to the tasks that wait for them.

        A replica whose store has failed neither answers nor listens: its memory may be ahead of its disk.
        """
        if self._broker.store_failed:
            return
        for frame in frames:
            match frame:
                case [str(word), int(number), str(question), list(arguments)] if word == _ASK:
                    _check_question(question, arguments)
                    self._reply(peer, number, self._answer(peer, question, arguments))
                case [str(word), int(number), answer] if word == _ANSWER:
                    future = self._waiting[peer].get(number)
                    if future is not None and not future.done():
                        future.set_result(answer)
                        self._latest[peer] = max(self._latest[peer], number)
                case _:
                    raise LinkError("neither question nor answer")

    def _reply(self, peer: str, number: int, answer: Any) -> None:
        if self._broker.store_failed:
            return
        if not isinstance(answer, asyncio.Future):
            self._links.send(peer, encode_frame([_ANSWER, number, answer]))
            return
        broken = self.broken[peer]

        def tell(done: asyncio.Future[Any]) -> None:
            # On a new link, a restarted peer may use this number for another question.
            if not done.cancelled() and self.broken[peer] == broken:
                self._reply(peer, number, done.result())

        answer.add_done_callback(tell)


def _check_question(question: str, arguments: list[Any]) -> None:
    """Check a question; raises LinkError for one that no replica asks."""
    if question not in QUESTIONS:
        raise LinkError(f"nobody asks {question!r:.80}")
    shapes = QUESTIONS[question][0]
    if len(shapes) != len(arguments) or not all(fits(it) for fits, it in zip(shapes, arguments, strict=True)):
        raise LinkError(f"{question} is not asked like that")
