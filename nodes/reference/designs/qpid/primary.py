"""The primary: serves clients, sends queue events to backups, and completes commands when the backups have them.

"On the primary broker incoming message transfers are completed only when all of the replicating browsers have signaled
completion" [Replicating browsers].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from nodes.reference.api import Broker, Closed, Command, Done, Effect, Refused
from nodes.reference.designs.qpid.browsing import Browser, Browsing
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration, InvalidRequest
from nodes.reference.designs.qpid.levels import Levels
from nodes.reference.designs.qpid.management import LIST, changes_of, listing, read_declaration, read_request
from nodes.reference.designs.qpid.messages import (
    CREATE,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    Attach,
    Event,
    Message,
    size_of,
)
from nodes.reference.designs.qpid.options import LC2A, LC2C, LM4, LM5, MESSAGES, NONE, QpidOptions
from nodes.reference.designs.qpid.positions import Generations, marked
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.destinations import CommandError
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import PLAIN, QUEUE_PREFIX
from nodes.reference.engine.model import Message as Held
from nodes.reference.points import COMPLETED, QPID_STORED

_GROUP = 1 << 20
"""Approximate size in bytes after which the events of further commands form a new group."""
_SETTLING = ("ack", "nack")
_CHANGELESS = ("open", "subscribe", "begin")
"""Commands that do not change replicated content."""


class Permission(Protocol):
    """The manager's permission for a primary to continue."""

    def holds(self) -> bool:
        """Tell whether it may confirm and deliver now."""
        ...

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Tell whether the promoting manager knows that these backups may lack data confirmed from now on; request it
        if not.
        """
        ...

    def missing(self, excluded: Sequence[str]) -> None:
        """Note the backups that would lack any data confirmed from now on."""
        ...


class Primary:
    """The role of primary, from promotion on; ``generation`` is its number.

    Completions wait for the backups of ``urls`` although they are not attached yet.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: QpidOptions, configuration: Configuration,
                 generations: Generations, generation: int, urls: Urls,
                 send: Callable[[str, Message], None], cut: Callable[[str, str], None],
                 permission: Permission | None) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._configuration, self._generations, self.generation = configuration, generations, generation
        self._levels = Levels(options, configuration)
        self._mark = marked(generation, broker.config.node)
        self.permission = permission
        self.browsing = Browsing(broker, engine, options, configuration, generations, generation, send, cut)
        self._documented = options.as_documented
        self.urls, self._name = urls, broker.config.node
        self.began = broker.runtime.now()
        deadline = self.began + options.catchup_timeout
        expected = urls.others(self._name)
        if not options.disaster_counted:
            expected = [name for name in expected if name not in options.disaster]
        self.expected = dict.fromkeys(expected, deadline)
        self.yet_to_come = dict.fromkeys(expected)
        """The expected backups that have never attached."""
        self.accepting = True
        self._commands: list[Command] = []
        self._wake = asyncio.Event()
        self._events: list[Event] = []
        self._later: list[Event] = []
        """Configuration changes to be sent at the next tick, asynchronously (LC2 as documented)."""
        self._deleting = ""
        """The queue that is being deleted together with its messages."""
        self.waiting: deque[tuple[int, list[Effect]]] = deque()
        self._held: dict[str, int] = {}
        """Connection -> the last group for which effects on it wait."""
        self._moved = 0.0
        self._task: asyncio.Task[None] | None = None

    # Lifecycle.

    def start(self) -> None:
        """Begin to serve."""
        self._engine.tap(self)
        self._engine.use_exchanges(self._configuration)
        self._task = self._broker.runtime.spawn(self._run(), "qpid commit")

    def stop(self) -> None:
        """Stop serving; commands that were not completed stay incomplete."""
        self._engine.tap(None)
        self.waiting.clear()
        self.browsing.stop()
        if self._task is not None:
            self._task.cancel()

    def submit(self, command: Command) -> None:
        """Queue a command; it is carried out together with all others that arrive in this turn of the event loop."""
        self._commands.append(command)
        self._wake.set()

    def idle(self) -> bool:
        """Tell whether everything is completed."""
        return not self.waiting and not self._commands and (
            self.browsing.completed_by_all() >= self.browsing.number)

    def tick(self) -> None:
        """Stop waiting for backups that took too long, and release effects that nothing holds any longer."""
        self._later, late = [], self._later
        self._next(late)
        now = self._broker.runtime.now()
        for name in [name for name, deadline in self.expected.items() if deadline <= now]:
            del self.expected[name]
            self._broker.runtime.log("backup no longer awaited", backup=name)
        self.browsing.give_up()
        if not self.awaits_backups and self.permission is not None:
            self.permission.missing(self.excluded)
        self.release()

    @property
    def excluded(self) -> list[str]:
        """The backups that may lack data confirmed now, as far as this primary tracks them; includes those that the
        broker URL no longer names."""
        counting = self.browsing.ready()
        if LM5 in self._documented:
            counting.update(self.expected)
        # A broker for disaster recovery is promoted by an administrator, who gets a report of the data it may lack.
        return sorted(name for name in self.urls.ever_named(self._name)
                      if name not in counting and name not in self._options.disaster)

    @property
    def awaits_backups(self) -> bool:
        """Tell whether completions wait for backups to attach; as the document leaves it they do not (LM5)."""
        return bool(self.expected) and LM5 not in self._documented

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._commit()

    def _commit(self) -> None:
        commands, self._commands = self._commands, []
        if not commands:
            return
        effects: list[Effect] = []
        early: list[Effect] = []
        groups: list[list[Event]] = [[]]
        size = 0
        with self._broker.transaction():
            for command in commands:
                came = self._apply(command)
                changed, self._events = self._events, []
                if self._is_complete(command, bool(changed)):
                    early += came
                else:
                    effects += came
                    self._held[command.conn] = self.browsing.number + 1
                groups[-1] += changed
                size += size_of(changed)
                if size > _GROUP:
                    groups.append([])
                    size = 0
            # Backups store the events while this broker does; their effects wait for both.
            for group in groups:
                self._next(group)
        self._broker.runtime.point(QPID_STORED)
        if early:
            self._broker.release(early)
        if not self.waiting:
            self._moved = self._broker.runtime.now()
        self.waiting.append((self.browsing.number, effects))
        self.release()

    def _is_complete(self, command: Command, changed: bool) -> bool:
        """Tell whether clients may have a command's effects at once, regardless of the backups."""
        if command.kind in _SETTLING:
            return LM4 in self._documented
        if command.kind == "request":
            return LC2C in self._documented
        if changed or command.kind not in _CHANGELESS or self._held.get(command.conn, 0) > self.released:
            return False
        return self.permission is None or self.permission.holds()

    def _next(self, events: list[Event]) -> None:
        """Send events that belong together to the backups."""
        if events:
            self.browsing.tell(events)

    def _apply(self, command: Command) -> list[Effect]:
        if command.kind == "request":
            return self._manage(command)
        made = ""
        try:
            reason = _unsupported(command)
            declared = _declared(command)
            if declared is not None and (QUEUE, declared[0]) not in self._configuration:
                self._engine.declare_queue(declared[0])
                self._make_on_demand(*declared)
                made = declared[0]
        except (InvalidRequest, CommandError) as mistake:
            reason = str(mistake)
        if reason is None:
            came = self._engine.apply(command)
            if made and any(isinstance(each, Refused) for each in came):
                self._change(False, QUEUE, made, {})  # a refused command has no effect
            return came
        receipt = command.args.get("receipt")
        if command.kind == "open":
            return [Closed(command.conn, reason, opening=True)]
        closing = self._engine.apply(Command("close", command.conn, 0, {"reason": "error"}))
        return [Refused(command.conn, receipt, reason), *(each for each in closing if not isinstance(each, Closed))]

    def _manage(self, command: Command) -> list[Effect]:
        """Carry out a request that creates, deletes or lists queues, exchanges or bindings."""
        headers: dict[str, str] = {}
        try:
            request, said = read_request(command.args["headers"], command.args["body"])
            if request == LIST:
                headers = listing(self._configuration, said, self._options.answer_page)
            else:
                for change in changes_of(request, said, self._configuration):
                    self._change(*change)
        except (InvalidRequest, CommandError) as mistake:
            headers["x-error"] = str(mistake)
        # The engine keeps the connection's state; this command itself means nothing to the engine.
        done = self._engine.apply(Command("received", command.conn, 0, {"receipt": command.args.get("receipt")}))
        return [replace(effect, headers=headers) if isinstance(effect, Done) else effect for effect in done]

    def _change(self, creates: bool, kind: str, name: str, arguments: dict[str, str]) -> None:
        events = self._later if LC2C in self._documented else self._events
        if creates:
            if kind == QUEUE:
                self._engine.declare_queue(name)
            self._create(kind, name, arguments, events)
            return
        level = self._levels.of(kind, name, self._configuration.get((kind, name)) or {})
        if kind == QUEUE:
            if name in self._engine.positions():
                self._deleting = name
                self._engine.delete_queue(name)
                self._deleting = ""
            self._generations.forget(name)
        self._configuration.remove(kind, name)
        if level != NONE:
            self._configuration.number += 1
            events.append([DELETE, kind, name, self._configuration.number])

    def _make_on_demand(self, queue: str, declared: Mapping[str, str]) -> None:
        """Create the queue for a client that sends to a nonexistent one, or subscribes to it [LC2, case a]."""
        events = self._later if LC2A in self._documented else self._events
        self._create(QUEUE, queue, dict(declared), events)

    # Queue events.

    def enqueued(self, message: Held) -> None:
        """Note that a message entered a queue."""
        queue = message.queue
        if queue.kind != PLAIN:
            return
        if (QUEUE, queue.name) not in self._configuration:
            self._make_on_demand(queue.name, {})
        self._generations.note(queue.name, self._mark, message.sequence)
        if self._levels.of_queue(queue.name) == MESSAGES:
            headers, body = self._engine.content(message)
            position = self.browsing.wire(message.sequence)
            self._events.append([ENQUEUE, queue.name, self._mark, position, dict(headers), body])

    def dequeued(self, message: Held) -> None:
        """Note that a message left its queue."""
        queue = message.queue
        if queue.kind != PLAIN or queue.name == self._deleting:
            return
        if self._levels.of_queue(queue.name) == MESSAGES:
            self._events.append([DEQUEUE, queue.name, self.browsing.wire(message.sequence)])

    def _create(self, kind: str, name: str, arguments: dict[str, str], events: list[Event]) -> None:
        told = self._levels.of(kind, name, arguments) != NONE
        self._configuration.number += told
        if kind == QUEUE:
            arguments = {**arguments, CREATED: f"{self._mark}.{self._configuration.number}"}
        self._configuration.put(kind, name, arguments)
        if told:
            events.append([CREATE, kind, name, arguments, self._configuration.number])

    # Completion.

    @property
    def held_for(self) -> float:
        """Seconds since the last completion while effects wait for the next one; else 0."""
        return self._broker.runtime.now() - self._moved if self.waiting else 0.0

    def release(self) -> None:
        """Release to clients the effects that all browsers have completed."""
        if not self.waiting or not self._may_complete():
            return
        done = self.browsing.completed_by_all()
        effects: list[Effect] = []
        while self.waiting and self.waiting[0][0] <= done:
            self.browsing.released, came = self.waiting.popleft()
            self._moved = self._broker.runtime.now()
            effects += came
        if not self.waiting:
            self._held.clear()
        self._broker.release(effects)

    def _may_complete(self) -> bool:
        if self.awaits_backups:
            return False
        if self.permission is None:
            return True
        return self.permission.holds() and self.permission.recorded(self.excluded)

    def completed(self, name: str, number: int, groups: int) -> None:
        """Note that a backup has applied and stored every group up to ``number``, and ``groups`` more of those sent to
        it.
        """
        self.browsing.completed(name, number, groups)
        self._broker.runtime.point(COMPLETED)
        self.release()

    @property
    def number(self) -> int:
        """The last group that was sent to backups."""
        return self.browsing.number

    @property
    def released(self) -> int:
        """The last group that clients know to be completed."""
        return self.browsing.released

    # Backups attach and leave.

    @property
    def browsers(self) -> Mapping[str, Browser]:
        """The backups that are attached."""
        return self.browsing.browsers

    def attached(self, name: str, message: Attach) -> None:
        """Attach a backup, which begins to browse all queues."""
        self.expected.pop(name, None)
        self.yet_to_come.pop(name, None)
        self.browsing.attached(name, message)

    def detached(self, name: str) -> None:
        """Detach a backup that has left."""
        if name in self.browsers:
            self.browsing.detached(name)
            self.release()


def _declared(command: Command) -> tuple[str, dict[str, str]] | None:
    """Return the queue that a command refers to, which exists from then on, and the arguments for its creation.

    Raises:
        InvalidRequest: its arguments are invalid.
    """
    destination, text = str(command.args.get("destination", "")), command.args.get("declare")
    if not destination.startswith(QUEUE_PREFIX) or (text is None and command.kind != "subscribe"):
        return None
    return destination.removeprefix(QUEUE_PREFIX), read_declaration(text or "")


def _unsupported(command: Command) -> str | None:
    """Return why a command is not supported by this design; None if it is."""
    if command.kind == "open" and command.args.get("reliable"):
        return "reliable connections are not replicated by this design: connect without x-reliable"
    if command.kind == "subscribe" and command.args.get("durable") is not None:
        return ("durable subscriptions are not replicated by this design: bind a queue to a topic exchange, and "
                "subscribe to that queue")
    if command.kind in ("prepare", "recover") or command.args.get("xid"):
        return "distributed transactions (XA) are not replicated by this design"
    return None
