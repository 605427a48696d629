"""Questions to other replicas and their answers, over the links of ``nodes.reference.links``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nodes.reference.api import Broker
from nodes.reference.icestorm.options import Options
from nodes.reference.links import LinkError, Links, encode_frame

_ASK, _ANSWER = "ask", "answer"

Answerer = Callable[[str, str, list[Any]], Any]


class PeerFailed(Exception):
    """A peer could not be asked, or did not answer in time.

    ``sent`` is false when the question certainly never left this replica.
    """

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Peers:
    """The other replicas. ``answer`` is called with (peer, question, arguments) of each that arrives."""

    def __init__(self, broker: Broker, options: Options, answer: Answerer) -> None:
        config = broker.config
        self.names = [name for name in config.peers if name != config.node]
        self._answer = answer
        self._timeout = options.response_timeout
        self._number = 0
        self._waiting: dict[str, dict[int, asyncio.Future[Any]]] = {name: {} for name in self.names}
        # Silence proves nothing here: a replica is asked, and has failed when it does not answer.
        self._links = Links(broker.runtime, self, config.node, config.peers, options.cluster,
                            silence=2 * options.response_timeout, retry=options.response_timeout / 4)

    async def start(self) -> None:
        """Listen and dial; raises OSError when the port can't be had."""
        await self._links.start()

    async def stop(self) -> None:
        """Close all links."""
        await self._links.stop()

    async def ask(self, peer: str, question: str, *arguments: Any, timeout: float | None = None) -> Any:
        """A peer's answer.

        Raises:
            PeerFailed: there is no link to it, the link broke, or no answer came within ``timeout`` seconds
                (default: the response time-out). The link of a peer that does not answer is cut.
        """
        self._number += 1
        number = self._number
        if not self._links.send(peer, encode_frame([_ASK, number, question, list(arguments)])):
            raise PeerFailed(f"no link to {peer}", sent=False)
        future = self._waiting[peer][number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, self._timeout if timeout is None else timeout)
        except TimeoutError:
            self._links.cut(peer, reason=f"no answer to {question}")
            raise PeerFailed(f"{peer} does not answer", sent=True) from None
        finally:
            self._waiting[peer].pop(number, None)

    async def ask_all(self, peers: Iterable[str], question: str, *arguments: Any,
                      timeout: float | None = None) -> dict[str, Any]:
        """The answers of those peers that gave one."""
        asked = list(peers)
        answers = await asyncio.gather(
            *(self.ask(peer, question, *arguments, timeout=timeout) for peer in asked), return_exceptions=True
        )
        found = {}
        for peer, answer in zip(asked, answers, strict=True):
            if isinstance(answer, PeerFailed):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[peer] = answer
        return found

    # What the links tell.

    def link_up(self, peer: str) -> None:
        """Nothing to do: whoever wants to know something asks."""

    def link_down(self, peer: str) -> None:
        """Nobody will answer what was asked on it."""
        waiting, self._waiting[peer] = self._waiting[peer], {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(PeerFailed(f"the link to {peer} broke", sent=True))

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Questions are answered at once, answers go to who waits for them."""
        for frame in frames:
            if not isinstance(frame, list) or len(frame) < 3:
                raise LinkError("neither question nor answer")
            if frame[0] == _ASK:
                _, number, question, arguments = frame
                self._reply(peer, number, self._answer(peer, question, arguments))
            elif frame[0] == _ANSWER:
                future = self._waiting[peer].get(frame[1])
                if future is not None and not future.done():
                    future.set_result(frame[2])
            else:
                raise LinkError(f"{frame[0]!r} is neither question nor answer")

    def _reply(self, peer: str, number: int, answer: Any) -> None:
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(
                lambda done: None if done.cancelled() else self._reply(peer, number, done.result())
            )
        else:
            self._links.send(peer, encode_frame([_ANSWER, number, answer]))
