"""The primary: serves clients, tells backups what happens to its queues, completes when they have it.

"On the primary broker incoming message transfers are completed only when all of the replicating browsers have signaled
completion" [Replicating browsers].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nodes.reference.api import Broker, Closed, Command, Done, Effect, Refused
from nodes.reference.bugs import COMPLETED_BEFORE_SIGNAL, DEQUEUE_NOT_SENT, switched_on
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration, Mistaken
from nodes.reference.designs.qpid.management import LIST, changes_of, listing, read_request
from nodes.reference.designs.qpid.messages import (
    CAUGHT_UP,
    CREATE,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    RESET,
    SNAPSHOT,
    Attach,
    Events,
    Message,
)
from nodes.reference.designs.qpid.options import LC2C, LC6, LM1, LM2, LM3, LM4, LM5, MESSAGES, NONE, Options
from nodes.reference.designs.qpid.positions import Generations, agreement, from_wire, to_wire, until
from nodes.reference.designs.qpid.states import CATCHUP, READY
from nodes.reference.engine.destinations import CommandError
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import PLAIN
from nodes.reference.engine.model import Message as Held

_CHUNK = 64 << 10
"""Bytes, about, of messages in one group while a backup catches up."""
_WINDOW = 8
"""Such groups that may be under way."""
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


@dataclass(eq=False)
class Browser:
    """A backup that browses this primary's queues.

    ``number`` is the last group that it has completed. Until ``live`` groups wait in ``held``, behind what was there
    when it attached. ``counts``: completions wait for it; ``until``: for so long, unless it is caught up.
    """

    name: str
    until: float
    state: str = CATCHUP
    number: int = -1
    live: bool = False
    counts: bool = True
    under_way: int = 0
    caught_up_at: int = -1
    held: list[tuple[int, list[list[Any]]]] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Primary:
    """The role of primary, from promotion on; ``generation`` is its number.

    ``expected`` are the backups that completions wait for although they are not attached yet.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: Options, configuration: Configuration,
                 generations: Generations, generation: int, expected: Sequence[str],
                 send: Callable[[str, Message], None], permission: Permission | None) -> None:
        self._broker, self._engine, self._options = broker, engine, options
        self._configuration, self._generations, self.generation = configuration, generations, generation
        self._send, self._permission = send, permission
        self._bugs = switched_on(broker.config.options)
        self._documented = options.as_documented
        self.peers = tuple(expected)
        deadline = broker.runtime.now() + options.catchup_timeout
        self.expected: dict[str, float] = {} if LM5 in self._documented else dict.fromkeys(expected, deadline)
        self.browsers: dict[str, Browser] = {}
        self.accepting = True
        self._commands: list[Command] = []
        self._wake = asyncio.Event()
        self._events: list[list[Any]] = []
        self._later: list[list[Any]] = []
        """Changes of the configuration that are told at the next tick, asynchronously (LC2c as documented)."""
        self._number = 0
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._held: dict[str, int] = {}
        """Connection -> the last group for which effects on it wait; ``_released`` is the last that is complete."""
        self._released = 0
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
        for task in (self._task, *(browser.task for browser in self.browsers.values())):
            if task is not None:
                task.cancel()

    def submit(self, command: Command) -> None:
        """Carry out with whatever else comes in this turn of the event loop."""
        self._commands.append(command)
        self._wake.set()

    def idle(self) -> bool:
        """Whether everything is completed."""
        return not self._waiting and not self._commands and all(
            browser.number >= self._number for browser in self.browsers.values() if browser.counts)

    def tick(self) -> None:
        """Give up backups that took too long, and release what nothing holds any more."""
        self._later, late = [], self._later
        self._next(late)
        now = self._broker.runtime.now()
        for name in [name for name, deadline in self.expected.items() if deadline <= now]:
            del self.expected[name]
            self._broker.runtime.log("backup not awaited any longer", backup=name)
        for browser in self.browsers.values():
            if browser.counts and browser.state == CATCHUP and browser.until <= now:
                browser.counts = False
                self._broker.runtime.log("backup given up", backup=browser.name, why="it does not catch up")
        if not self.expected and self._permission is not None:
            self._permission.recorded(self.excluded)
        self.release()

    @property
    def excluded(self) -> list[str]:
        """The configured backups that may lack what is confirmed now."""
        counting = {name for name, browser in self.browsers.items() if browser.counts and browser.state == READY}
        return sorted(name for name in self.peers if name not in counting)

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
        with self._broker.transaction():
            for command in commands:
                before = len(self._events)
                came = self._apply(command)
                if self._is_complete(command, len(self._events) > before):
                    early += came
                else:
                    effects += came
                    self._held[command.conn] = self._number + 1
            events, self._events = self._events, []
        if early:
            self._broker.release(early)
        if LC2C in self._documented:
            self._later += [event for event in events if event[0] in (CREATE, DELETE)]
            events = [event for event in events if event[0] not in (CREATE, DELETE)]
        self._next(events)
        self._waiting.append((self._number, effects))
        self.release()

    def _is_complete(self, command: Command, changed: bool) -> bool:
        """Whether clients may have a command's effects at once, whatever the backups have."""
        if command.kind in _SETTLING:
            return LM4 in self._documented
        if command.kind == "request":
            return LC2C in self._documented
        if changed or command.kind not in _CHANGELESS or self._held.get(command.conn, 0) > self._released:
            return False
        return self._permission is None or self._permission.holds()

    def _next(self, events: list[list[Any]]) -> None:
        """Tell the backups what belongs together."""
        if events:
            self._number += 1
            self._tell(self._number, events)

    def _apply(self, command: Command) -> list[Effect]:
        if command.kind == "request":
            return self._manage(command)
        reason = _unsupported(command)
        if reason is None:
            return self._engine.apply(command)
        receipt = command.args.get("receipt")
        if command.kind == "open":
            return [Closed(command.conn, reason)]
        closing = self._engine.apply(Command("close", command.conn, 0, {"reason": "error"}))
        return [Refused(command.conn, receipt, reason), *(each for each in closing if not isinstance(each, Closed))]

    def _manage(self, command: Command) -> list[Effect]:
        """A request that makes or removes queues, exchanges or bindings."""
        headers: dict[str, str] = {}
        try:
            request, said = read_request(command.args["headers"], command.args["body"])
            if request == LIST:
                headers["x-answer"] = listing(self._configuration, said.get("kind", ""))
            else:
                for change in changes_of(request, said, self._configuration):
                    self._change(*change)
        except (Mistaken, CommandError) as mistake:
            headers["x-error"] = str(mistake)
        # The connection's own things are the engine's; this command is nothing to it.
        done = self._engine.apply(Command("received", command.conn, 0, {"receipt": command.args.get("receipt")}))
        return [replace(effect, headers=headers) if isinstance(effect, Done) else effect for effect in done]

    def _change(self, creates: bool, kind: str, name: str, arguments: dict[str, str]) -> None:
        if creates:
            if kind == QUEUE:
                self._engine.declare_queue(name)
            self._create(kind, name, arguments)
            return
        level = self._options.level(name, self._configuration.get((kind, name)) or {})
        if kind == QUEUE:
            if name in self._engine.positions():
                self._engine.delete_queue(name)
            self._generations.forget(name)
        self._configuration.remove(kind, name)
        self._configuration.number += 1
        if level != NONE:
            self._events.append([DELETE, kind, name, self._configuration.number])

    # What happens to queues.

    def enqueued(self, message: Held) -> None:
        """A message came into a queue."""
        queue = message.queue
        if queue.kind != PLAIN:
            return
        if (QUEUE, queue.name) not in self._configuration:
            self._create(QUEUE, queue.name, {})
        self._generations.note(queue.name, self.generation, message.sequence)
        if self._level(queue.name) == MESSAGES:
            headers, body = self._engine.content(message)
            position = self._wire(message.sequence)
            self._events.append([ENQUEUE, queue.name, self.generation, position, dict(headers), body])

    def dequeued(self, message: Held) -> None:
        """A message left its queue."""
        queue = message.queue
        if queue.kind == PLAIN and self._level(queue.name) == MESSAGES and DEQUEUE_NOT_SENT not in self._bugs:
            self._events.append([DEQUEUE, queue.name, self._wire(message.sequence)])

    def _level(self, queue: str) -> str:
        return self._options.level(queue, self._configuration.get((QUEUE, queue)) or {})

    def _create(self, kind: str, name: str, arguments: dict[str, str]) -> None:
        self._configuration.number += 1
        if kind == QUEUE:
            arguments = {**arguments, CREATED: f"{self.generation}.{self._configuration.number}"}
        self._configuration.put(kind, name, arguments)
        if self._options.level(name, arguments) != NONE:
            self._events.append([CREATE, kind, name, arguments, self._configuration.number])

    def _wire(self, position: int) -> list[int]:
        return to_wire(position, self._options.sequence_bits, LM2 not in self._documented)

    # Completion.

    def release(self) -> None:
        """Let clients have what all browsers have completed."""
        if not self._waiting or not self._may_complete():
            return
        done = self._number
        if COMPLETED_BEFORE_SIGNAL not in self._bugs:
            done = min([done, *(browser.number for browser in self.browsers.values() if browser.counts)])
        effects: list[Effect] = []
        while self._waiting and self._waiting[0][0] <= done:
            self._released, came = self._waiting.popleft()
            effects += came
        if not self._waiting:
            self._held.clear()
        self._broker.release(effects)

    def _may_complete(self) -> bool:
        if self.expected:
            return False
        return self._permission is None or (self._permission.holds() and self._permission.recorded(self.excluded))

    def completed(self, name: str, number: int, groups: int) -> None:
        """A backup has applied and stored every group up to this number, and so many more of those that it is sent."""
        browser = self.browsers.get(name)
        if browser is None:
            return
        browser.number = max(browser.number, number)
        browser.under_way = max(0, browser.under_way - groups)
        browser.moved.set()
        if browser.state == CATCHUP and browser.caught_up_at >= 0 and browser.number >= browser.caught_up_at:
            browser.state, browser.counts = READY, True
            self._broker.runtime.log("backup ready", backup=name)
        self.release()

    # Backups come and go.

    def attached(self, name: str, message: Attach) -> None:
        """A backup begins to browse all queues."""
        self.detached(name)
        self.expected.pop(name, None)
        browser = self.browsers[name] = Browser(name, self._broker.runtime.now() + self._options.catchup_timeout)
        self._broker.runtime.log("backup attached", backup=name, queues=len(message.queues))
        first, behind = self._differences(message)
        self._send(name, Events(0, self.generation, first))
        browser.under_way += 1
        browser.task = self._broker.runtime.spawn(self._catch_up(browser, self._number, behind), f"browser of {name}")

    def detached(self, name: str) -> None:
        """The backup is gone."""
        browser = self.browsers.pop(name, None)
        if browser is None:
            return
        if browser.task is not None:
            browser.task.cancel()
        self._broker.runtime.log("backup gone", backup=name)
        self.release()

    def _differences(self, message: Attach) -> tuple[list[list[Any]], dict[str, int]]:
        """What makes a backup's queues equal to this broker's, but for what it lacks at their ends; and from where on
        that is: position of the last message that it has, by queue."""
        objects = [(kind, name, dict(arguments)) for (kind, name), arguments in self._configuration.items()
                   if self._options.level(name, arguments) != NONE]
        events: list[list[Any]] = [[SNAPSHOT, self._configuration.number, [list(each) for each in objects]]]
        told = {queue[0]: queue for queue in message.queues}
        behind: dict[str, int] = {}
        positions = self._engine.positions()
        held = self._engine.held()
        for kind, name, _ in objects:
            if kind != QUEUE or self._level(name) != MESSAGES:
                continue
            ours, last = held.get(name, set()), positions.get(name, 0)
            created = (self._configuration.get((kind, name)) or {}).get(CREATED, "")
            same = name in told and told[name][1] == created
            _, _, generations, at, pieces = told[name] if same else [name, created, [], [0, 0], []]
            theirs = from_wire(at, self._options.sequence_bits, LM2 not in self._documented, last)
            having = {position for first, count in pieces for position in range(first, first + count)}
            if LM1 in self._documented:
                behind[name] = max(0, theirs)
                events += [[DEQUEUE, name, self._wire(each)] for each in sorted(having - ours) if each <= last]
                continue
            agreed = agreement(self._generations.of(name), last, [(g, f) for g, f in generations], theirs)
            lacking = [position for position in ours if position <= agreed and position not in having]
            if lacking:
                agreed = min(lacking) - 1  # it is told of them again, and of all that came after
            if theirs > agreed:
                kept = [list(each) for each in until(self._generations.of(name), agreed)]
                events.append([RESET, name, self._wire(agreed), kept])
            events += [[DEQUEUE, name, self._wire(each)] for each in sorted(having - ours) if each <= agreed]
            behind[name] = agreed
        return events, behind

    async def _catch_up(self, browser: Browser, number: int, behind: dict[str, int]) -> None:
        """Send what a backup lacks, then what has happened meanwhile."""
        for group in self._pieces(behind):
            while browser.under_way >= _WINDOW:
                browser.moved.clear()
                await browser.moved.wait()
            self._send_group(browser, 0, group)
            await asyncio.sleep(0)
        self._send_group(browser, number, [])
        while browser.held:
            for held_number, events in browser.held[:_WINDOW]:
                self._send_group(browser, held_number, events)
                number = held_number
            del browser.held[:_WINDOW]
            while browser.under_way >= _WINDOW:
                browser.moved.clear()
                await browser.moved.wait()
        browser.live, browser.caught_up_at = True, number
        self._send_group(browser, number, [[CAUGHT_UP]])

    def _pieces(self, behind: dict[str, int]) -> Iterator[list[list[Any]]]:
        events: list[list[Any]] = []
        size = 0
        for queue, position in behind.items():
            last = self._engine.positions().get(queue, 0)
            for held in self._engine.browse(queue):
                if not position < held.sequence <= last:
                    continue
                generation = self._numbered_by(queue, held.sequence)
                events.append([ENQUEUE, queue, generation, self._wire(held.sequence), dict(held.headers), held.body])
                size += len(held.body)
                if size >= _CHUNK:
                    yield events
                    events, size = [], 0
            if last > position:
                # Messages at the end may be gone already; the count goes on behind them all the same.
                kept = [list(each) for each in until(self._generations.of(queue), last)]
                events.append([RESET, queue, self._wire(last), kept])
        if events:
            yield events

    def _numbered_by(self, queue: str, position: int) -> int:
        return max((generation for generation, first in self._generations.of(queue) if first <= position), default=0)

    def _tell(self, number: int, events: list[list[Any]]) -> None:
        for browser in self.browsers.values():
            if browser.live:
                self._send_group(browser, number, events)
            elif LC6 in self._documented:
                # The query's answer was on its way already, and events are only told from then on.
                browser.held.append((number, [event for event in events if event[0] != DELETE]))
            else:
                browser.held.append((number, events))

    def _send_group(self, browser: Browser, number: int, events: list[list[Any]]) -> None:
        browser.under_way += 1
        if LM3 not in self._documented:
            self._send(browser.name, Events(number, self.generation, events))
            return
        # Each queue has a browser of its own, and nothing tells what belonged together.
        queues: dict[str, list[list[Any]]] = {}
        for event in events:
            queues.setdefault(str(event[1]) if len(event) > 1 else "", []).append(event)
        *others, last = queues.values() or [[]]
        for group in others:
            self._send(browser.name, Events(0, self.generation, group))
            browser.under_way += 1
        self._send(browser.name, Events(number, self.generation, last))


def _unsupported(command: Command) -> str | None:
    """Why a command can't be carried out in this design; None if it can."""
    if command.kind == "open" and command.args.get("reliable"):
        return "reliable connections are not replicated by this design: connect without x-reliable"
    if command.kind in ("prepare", "recover") or command.args.get("xid"):
        return "distributed transactions (XA) are not replicated by this design"
    return None
