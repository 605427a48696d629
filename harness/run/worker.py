"""One client thread of a test: it carries out one operation at a time with its client, in a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from stormproof.backoff import Backoff
from stormproof.contracts.client import Abandoned, Client, Noting, Refusable
from stormproof.errors import StormproofError, errors_of_others
from stormproof.generator.core import COMPLETION_TYPES, LOG, SLEEP
from stormproof.operation import INFO, NEMESIS, OK, Op
from stormproof.text import printable, reason
from stormproof.timeout_scale import TIMEOUT_FACTOR

LEAVE_SECONDS = 2.0 * TIMEOUT_FACTOR
"""The time that an operation that was cut off may take to end before it is abandoned."""

logger = logging.getLogger("stormproof.interpreter")


class InterpreterError(StormproofError):
    """A client broke its contract in a way that would falsify the history."""


class Hears(Protocol):
    """The owner of a worker, which gives it operations and learns their ends."""

    def completed(self, worker: ClientWorker, op: Op) -> None:
        """Take note that a worker's operation has ended."""

    def failed(self, error: StormproofError) -> None:
        """Take note of an error that ends the run."""

    def retire(self, client: Client) -> None:
        """Take over a client that its thread has lost."""


class ClientWorker:
    """One thread of the test: carries out one operation at a time in its own task."""

    def __init__(self, thread: int, factory: Callable[[int], Client], interpreter: Hears, backoff: Backoff) -> None:
        self.thread = thread
        self.pause = 0.0
        """Seconds that the thread pauses after the last operation."""
        self._backoff = backoff
        self.op: Op | None = None
        self.since = 0
        self.lost = False
        """Whether the last operation ended this thread's process."""
        self.abandoned = False
        """Whether the last operation has not ended."""
        self._cut = ""
        """The reason for cutting off the operation under way, if it is being cut off."""
        self._factory = factory
        self._interpreter = interpreter
        self.client: Client | None = None
        self._noting: Noting | None = None
        """The client, if it takes notes. It is stored because testing for this ability takes long."""
        self._refusable: Refusable | None = None
        """The client, if it can tell whether it was served."""
        self._notes: list[tuple[Op, Op]] = []
        self._mailbox: asyncio.Future[Op] | None = None
        self._task: asyncio.Task[None] | None = None

    def give(self, op: Op, now: int) -> None:
        """Start an operation. The interpreter is called when it has ended."""
        self.op, self.since, self._cut, self.pause = op, now, "", 0.0
        if self._task is None:
            self._mailbox = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._work(), name=f"stormproof-thread-{self.thread}")
        assert self._mailbox is not None
        self._mailbox.set_result(op)

    def interrupt(self, why: str) -> None:
        """Cut off the operation under way, if there is one, and complete it as ``info`` at once."""
        op = self.op
        if op is None:
            return
        self._end_task()
        self._forget_client()
        recorded = op.type not in (SLEEP, LOG)
        self._finish(op.info(why) if recorded else op, lost=recorded)

    def cut_off(self, why: str) -> None:
        """Cancel the operation under way: it ends as ``info``, or is abandoned after ``LEAVE_SECONDS``."""
        op, task = self.op, self._task
        if op is None or task is None or self._cut:
            return
        if op.type in (SLEEP, LOG):
            self.interrupt(why)
            return
        self._cut = why
        task.cancel()
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._leave, op)

    def _leave(self, op: Op) -> None:
        if self.op is op:
            self._task = None
            self._forget_client()
            self._finish(op.info(self._cut), lost=True, abandoned=True)

    def end(self) -> Client | None:
        """Take no further operations. Return the client that was in use, which the caller must close."""
        self.op = None
        self._end_task()
        return self._client_of_its_own()

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        this = asyncio.current_task()
        while self._task is this:
            assert self._mailbox is not None
            op = await self._mailbox
            self._mailbox = loop.create_future()
            if op.type == SLEEP:
                await asyncio.sleep(op.value)
                self._finish(op, lost=False)
            elif op.type == LOG:
                logger.info("%s", op.value)
                self._finish(op, lost=False)
            else:
                await self._carry_out(op)

    async def _carry_out(self, op: Op) -> None:
        begun = asyncio.get_running_loop().time()
        completion: Op | None = None
        try:
            completion = await self._open_and_invoke(op)
        except asyncio.CancelledError:
            if self.op is not op:
                raise
            # Either the operation was cut off, or a task inside the client was cancelled, or the whole loop is ending.
            # In any case this task ends, and the operation's outcome is unknown.
            self._task = None
            completion = op.info(self._cut or "cancelled inside the client")
        except Abandoned as error:
            if self.op is op:
                self._forget_client()
                self._finish(op.info(printable(str(error))), lost=True, abandoned=True)
            return
        if self.op is not op:  # interrupted or abandoned in the meantime
            return
        if self._cut:
            self._task = None
            completion = op.info(self._cut)
        if self.thread != NEMESIS:
            self.pause = self._pause(completion, asyncio.get_running_loop().time() - begun)
        lost = self.thread != NEMESIS and (completion.type == INFO or self.client is None)
        if lost:
            self._forget_client()
        elif self._noting is not None:
            self._notes += self._noting.notes(over=False)
        self._finish(completion, lost=lost)

    def _pause(self, completion: Op, taken: float) -> float:
        """Return the pause after an operation that took ``taken`` seconds."""
        refused = self.client is None or (self._refusable is not None and self._refusable.unserved)
        if completion.type == INFO or (completion.type != OK and refused):
            return max(0.0, self._backoff.failed() - taken)
        self._backoff.served()
        return 0.0

    async def _open_and_invoke(self, op: Op) -> Op:
        client = self.client
        if client is None:
            try:
                client = self.client = self._factory(op.process)
                self._noting = client if isinstance(client, Noting) else None
                self._refusable = client if isinstance(client, Refusable) else None
            except errors_of_others() as error:
                self._interpreter.failed(InterpreterError(f"no client could be made: {reason(error)}"))
                return op.fail("no client")
            try:
                await client.open()
            except errors_of_others() as error:
                if self.op is op:
                    self._forget_client()
                return op.fail(f"no client: {reason(error)}")
        try:
            completion = await client.invoke(op)
        except errors_of_others() as error:
            logger.debug("process %d: %s raised", op.process, op.f, exc_info=True)
            return op.info(reason(error))
        problem = _problem(op, completion)
        if problem:
            self._interpreter.failed(InterpreterError(problem))
            return op.info(f"harness: {problem}")
        return completion

    def _finish(self, completion: Op, *, lost: bool, abandoned: bool = False) -> None:
        self.op, self.lost, self.abandoned = None, lost, abandoned
        self._interpreter.completed(self, completion)

    def _forget_client(self) -> None:
        client = self._client_of_its_own()
        if client is not None:
            self._interpreter.retire(client)

    def _client_of_its_own(self) -> Client | None:
        """Hand over the worker's client, if it has one. The nemesis does not belong to its worker."""
        client, self.client = self.client, None
        if self.thread == NEMESIS:
            return None
        noting, self._noting = self._noting, None
        if noting is not None:
            self._notes += noting.notes(over=True)
        return client

    def take_notes(self) -> list[tuple[Op, Op]]:
        """Return the notes of its clients since the last call."""
        notes, self._notes = self._notes, []
        return notes


def _problem(op: Op, completion: object) -> str | None:
    if not isinstance(completion, Op):
        return f"client answered {completion!r} to {op.f}, not an operation"
    if completion.type not in COMPLETION_TYPES:
        return f"client completed {op.f} with type {completion.type!r}, not one of ok, fail, info"
    if completion.process != op.process or completion.f != op.f:
        return f"client completed {op} with another operation's completion {completion}"
    return None
