"""The primary: serves clients, tells backups what happens to its queues, completes when they have it.

"On the primary broker incoming message transfers are completed only when all of the replicating browsers have signaled
completion" [Replicating browsers].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from nodes.reference.api import Broker, Closed, Command, Done, Effect, Pending, Refused
from nodes.reference.bugs import (
    COMPLETED_BEFORE_SIGNAL,
    DEQUEUE_NOT_SENT,
    EXCLUSION_NOT_NOTED,
    INQUORATE_BROKER_LIVES,
    switched_on,
)
from nodes.reference.designs.qpid.browsing import Browser, Browsing
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration, Mistaken
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
from nodes.reference.designs.qpid.options import LC2A, LC2C, LM4, LM5, MESSAGES, NONE, Options
from nodes.reference.designs.qpid.positions import Generations, marked
from nodes.reference.designs.qpid.states import CATCHUP
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.destinations import CommandError
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import PLAIN, QUEUE_PREFIX
from nodes.reference.engine.model import Message as Held
from nodes.reference.points import COMPLETED, QPID_STORED

_GROUP = 1 << 20
"""Bytes, about, after which what other commands did is a group of its own."""
_SETTLING = ("ack", "nack")
_CHANGELESS = ("open", "subscribe", "begin")
"""Commands that change nothing which backups have."""


class Permission(Protocol):
    """Who lets a primary go on, where a manager does."""

    def holds(self) -> bool:
        """Whether it may confirm and deliver now."""
        ...

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Whether whoever promotes knows that these backups may lack what is confirmed from now on."""
        ...

    def knows(self, excluded: Sequence[str]) -> bool:
        """The same, without asking for it."""
        ...

    def missing(self, excluded: Sequence[str]) -> None:
        """These backups would lack what was confirmed from now on, if anything was."""
        ...


class Primary:
    """The role of primary, from promotion on; ``generation`` is its number.

    Completions wait for the backups of ``urls`` although they are not attached yet.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: Options, configuration: Configuration,
                 generations: Generations, generation: int, urls: Urls,
                 send: Callable[[str, Message], None], cut: Callable[[str, str], None],
                 permission: Permission | None) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._configuration, self._generations, self.generation = configuration, generations, generation
        self._levels = Levels(options, configuration)
        self._mark = marked(generation, broker.config.node)
        self._permission = permission
        self._browsing = Browsing(broker, engine, options, configuration, generations, generation, send, cut)
        self._bugs = switched_on(broker.config.options)
        self._documented = options.as_documented
        self._urls, self._name = urls, broker.config.node
        self._began = broker.runtime.now()
        deadline = self._began + options.catchup_timeout
        expected = urls.others(self._name)
        if not options.disaster_counted:
            expected = [name for name in expected if name not in options.disaster]
        self.expected = dict.fromkeys(expected, deadline)
        self._yet_to_come = dict.fromkeys(expected)
        """Those of them that have never attached."""
        self.accepting = True
        self._commands: list[Command] = []
        self._wake = asyncio.Event()
        self._events: list[Event] = []
        self._later: list[Event] = []
        """Changes of the configuration that are told at the next tick, asynchronously (LC2 as documented)."""
        self._deleting = ""
        """The queue that is being deleted with all that is in it."""
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._held: dict[str, int] = {}
        """Connection -> the last group for which effects on it wait."""
        self._moved = 0.0
        self._task: asyncio.Task[None] | None = None

    # From promotion to the end.

    def start(self) -> None:
        """Begin to serve."""
        self._engine.tap(self)
        self._engine.use_exchanges(self._configuration)
        self._task = self._broker.runtime.spawn(self._run(), "qpid commit")

    def stop(self) -> None:
        """Serve no longer; what was not completed stays so."""
        self._engine.tap(None)
        self._waiting.clear()
        self._browsing.stop()
        if self._task is not None:
            self._task.cancel()

    def submit(self, command: Command) -> None:
        """Carry out with whatever else comes in this turn of the event loop."""
        self._commands.append(command)
        self._wake.set()

    def idle(self) -> bool:
        """Whether everything is completed."""
        return not self._waiting and not self._commands and (
            self._browsing.completed_by_all() >= self._browsing.number)

    def tick(self) -> None:
        """Give up backups that took too long, and release what nothing holds any more."""
        self._later, late = [], self._later
        self._next(late)
        now = self._broker.runtime.now()
        for name in [name for name, deadline in self.expected.items() if deadline <= now]:
            del self.expected[name]
            self._broker.runtime.log("backup not awaited any longer", backup=name)
        self._browsing.give_up()
        if not self._awaits_backups and self._permission is not None:
            self._permission.missing(self.excluded)
        self.release()

    @property
    def excluded(self) -> list[str]:
        """The backups that may lack what is confirmed now, as far as this primary heeds it, those that the broker URL
        names no more among them."""
        if EXCLUSION_NOT_NOTED in self._bugs:
            return []
        counting = self._browsing.ready()
        if LM5 in self._documented:
            counting.update(self.expected)
        # Whoever is for disaster recovery is promoted by a person, who has been told what that may lack.
        return sorted(name for name in self._urls.ever_named(self._name)
                      if name not in counting and name not in self._options.disaster)

    @property
    def _awaits_backups(self) -> bool:
        """Whether completions wait for backups to attach; as the document leaves it they do not (LM5)."""
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
                    self._held[command.conn] = self._browsing.number + 1
                groups[-1] += changed
                size += size_of(changed)
                if size > _GROUP:
                    groups.append([])
                    size = 0
            # Backups store it while this broker does; what comes of it waits for both.
            for group in groups:
                self._next(group)
        self._broker.runtime.point(QPID_STORED)
        if early:
            self._broker.release(early)
        if not self._waiting:
            self._moved = self._broker.runtime.now()
        self._waiting.append((self._browsing.number, effects))
        self.release()

    def _is_complete(self, command: Command, changed: bool) -> bool:
        """Whether clients may have a command's effects at once, whatever the backups have."""
        if command.kind in _SETTLING:
            return LM4 in self._documented
        if command.kind == "request":
            return LC2C in self._documented
        if changed or command.kind not in _CHANGELESS or self._held.get(command.conn, 0) > self.released:
            return False
        return self._permission is None or self._permission.holds() or INQUORATE_BROKER_LIVES in self._bugs

    def _next(self, events: list[Event]) -> None:
        """Tell the backups what belongs together."""
        if events:
            self._browsing.tell(events)

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
        except (Mistaken, CommandError) as mistake:
            reason = str(mistake)
        if reason is None:
            came = self._engine.apply(command)
            if made and any(isinstance(each, Refused) for each in came):
                self._change(False, QUEUE, made, {})  # what is refused has no effect
            return came
        receipt = command.args.get("receipt")
        if command.kind == "open":
            return [Closed(command.conn, reason, opening=True)]
        closing = self._engine.apply(Command("close", command.conn, 0, {"reason": "error"}))
        return [Refused(command.conn, receipt, reason), *(each for each in closing if not isinstance(each, Closed))]

    def _manage(self, command: Command) -> list[Effect]:
        """A request that makes or removes queues, exchanges or bindings."""
        headers: dict[str, str] = {}
        try:
            request, said = read_request(command.args["headers"], command.args["body"])
            if request == LIST:
                headers = listing(self._configuration, said, self._options.answer_page)
            else:
                for change in changes_of(request, said, self._configuration):
                    self._change(*change)
        except (Mistaken, CommandError) as mistake:
            headers["x-error"] = str(mistake)
        # The connection's own things are the engine's; this command is nothing to it.
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
        """A client sends to a queue that is not there, or subscribes to it [LC2, case a]."""
        events = self._later if LC2A in self._documented else self._events
        self._create(QUEUE, queue, dict(declared), events)

    # What happens to queues.

    def enqueued(self, message: Held) -> None:
        """A message came into a queue."""
        queue = message.queue
        if queue.kind != PLAIN:
            return
        if (QUEUE, queue.name) not in self._configuration:
            self._make_on_demand(queue.name, {})
        self._generations.note(queue.name, self._mark, message.sequence)
        if self._levels.of_queue(queue.name) == MESSAGES:
            headers, body = self._engine.content(message)
            position = self._browsing.wire(message.sequence)
            self._events.append([ENQUEUE, queue.name, self._mark, position, dict(headers), body])

    def dequeued(self, message: Held) -> None:
        """A message left its queue."""
        queue = message.queue
        if queue.kind != PLAIN or queue.name == self._deleting or DEQUEUE_NOT_SENT in self._bugs:
            return
        if self._levels.of_queue(queue.name) == MESSAGES:
            self._events.append([DEQUEUE, queue.name, self._browsing.wire(message.sequence)])

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
        """Seconds since something was completed last, while something waits for that; else 0."""
        return self._broker.runtime.now() - self._moved if self._waiting else 0.0

    def release(self) -> None:
        """Let clients have what all browsers have completed."""
        if not self._waiting or not self._may_complete():
            return
        early = COMPLETED_BEFORE_SIGNAL in self._bugs
        done = self._browsing.number if early else self._browsing.completed_by_all()
        effects: list[Effect] = []
        while self._waiting and self._waiting[0][0] <= done:
            self._browsing.released, came = self._waiting.popleft()
            self._moved = self._broker.runtime.now()
            effects += came
        if not self._waiting:
            self._held.clear()
        self._broker.release(effects)

    def _may_complete(self) -> bool:
        if self._awaits_backups:
            return False
        if self._permission is None or INQUORATE_BROKER_LIVES in self._bugs:
            return True
        return self._permission.holds() and self._permission.recorded(self.excluded)

    def completed(self, name: str, number: int, groups: int) -> None:
        """A backup has applied and stored every group up to this number, and so many more of those that it is sent."""
        self._browsing.completed(name, number, groups)
        self._broker.runtime.point(COMPLETED)
        self.release()

    @property
    def number(self) -> int:
        """The last group that backups were told of."""
        return self._browsing.number

    @property
    def released(self) -> int:
        """The last group that clients know to be completed."""
        return self._browsing.released

    def has_its_time(self) -> list[str]:
        """The backups that lack something which clients know to be completed, and have their time still to catch up."""
        found = [name for name, since in self._browsing.behind(self.released).items() if self._is_young(since)]
        return [*found, *self._yet_to_come] if self._is_young(self._began) else found

    def _is_young(self, since: float) -> bool:
        return self._broker.runtime.now() < since + self._options.catchup_timeout

    def _unreleased(self) -> list[int]:
        """The group that waits first, if nothing holds it."""
        if not self._waiting or self._awaits_backups or self._waiting[0][0] > self._browsing.completed_by_all():
            return []
        permission = self._permission
        held = permission is not None and not (permission.holds() and permission.knows(self.excluded))
        return [] if held else [self._waiting[0][0]]

    def miscounted(self) -> str:
        """What is counted otherwise than it is there, or who browses that is no broker of this cluster."""
        strangers = [name for name in self.browsers if name not in self._urls.brokers]
        return f"backups that the broker URL does not name: {strangers}" if strangers else self._browsing.miscounted()

    def held_back(self) -> str:
        """A backup that is sent nothing of what it lacks though its window has room, if there is one."""
        return self._browsing.held_back()

    def pending(self) -> Pending:
        """What completions wait for, and which backups are not there."""
        found: dict[str, Collection[Hashable]] = {}
        if self.expected:
            found["expected"] = list(self.expected.items())
            if there := [name for name in self.expected if name in self.browsers]:
                found["expected-though-there"] = there
        if self._waiting:
            found["completion"] = [self._waiting[0][0]]
        if unreleased := self._unreleased():
            found["unreleased"] = unreleased
        if away := [name for name in self._urls.others(self._name) if name not in self.browsers]:
            found["away"] = away
        slow = [(each.name, each.until) for each in self.browsers.values() if each.counts and each.state == CATCHUP]
        if slow:
            found["slow-backup"] = slow
        if uncounted := self._browsing.uncounted():
            found["ready-uncounted"] = uncounted
        if lacking := self._browsing.lacking():
            found["catch-up-window"] = lacking
        if sent := [(each.name, each.number, each.under_way) for each in self.browsers.values() if each.under_way]:
            found["browser"] = sent
        return found

    # Backups come and go.

    @property
    def browsers(self) -> Mapping[str, Browser]:
        """The backups that are attached."""
        return self._browsing.browsers

    def attached(self, name: str, message: Attach) -> None:
        """A backup begins to browse all queues."""
        self.expected.pop(name, None)
        self._yet_to_come.pop(name, None)
        self._browsing.attached(name, message)

    def detached(self, name: str) -> None:
        """The backup is gone."""
        if name in self.browsers:
            self._browsing.detached(name)
            self.release()


def _declared(command: Command) -> tuple[str, dict[str, str]] | None:
    """The queue that a command is about, which exists from then on, and with which arguments it is made.

    Raises:
        Mistaken: its arguments make no sense.
    """
    destination, text = str(command.args.get("destination", "")), command.args.get("declare")
    if not destination.startswith(QUEUE_PREFIX) or (text is None and command.kind != "subscribe"):
        return None
    return destination.removeprefix(QUEUE_PREFIX), read_declaration(text or "")


def _unsupported(command: Command) -> str | None:
    """Why a command can't be carried out in this design; None if it can."""
    if command.kind == "open" and command.args.get("reliable"):
        return "reliable connections are not replicated by this design: connect without x-reliable"
    if command.kind == "subscribe" and command.args.get("durable") is not None:
        return ("durable subscriptions are not replicated by this design: bind a queue to a topic exchange, and "
                "subscribe to that queue")
    if command.kind in ("prepare", "recover") or command.args.get("xid"):
        return "distributed transactions (XA) are not replicated by this design"
    return None
