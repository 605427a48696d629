"""The backups that browse a primary's queues: the events sent to each, and its progress [Replicating browsers].

A backup that attaches first gets the events that make its queues consistent with the primary's, then the messages that
it lacks; events that occur in the meantime are held for it. From then on it gets events as they occur.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nodes.reference.api import Broker
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration
from nodes.reference.designs.qpid.levels import Levels
from nodes.reference.designs.qpid.messages import (
    CAUGHT_UP,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    RESET,
    SNAPSHOT,
    Attach,
    Event,
    EventGroup,
    Message,
    parts_of,
    size_of,
)
from nodes.reference.designs.qpid.options import LC6, LM1, LM2, LM3, MESSAGES, NONE, QpidOptions
from nodes.reference.designs.qpid.positions import Generations, agreement, from_wire, to_wire, until
from nodes.reference.designs.qpid.queue_browsers import QueueBrowsers
from nodes.reference.designs.qpid.states import CATCHUP, READY
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.points import ATTACHED, CATCH_UP_SENT

WINDOW_GROUPS = 8
"""Maximum number of groups in flight while a backup catches up."""
_CHUNKS_PER_PART = 4
"""The number of catch-up pieces that equal one part of a group in size."""


@dataclass(eq=False)
class Browser:
    """A backup that browses this primary's queues.

    It attached at ``since``; ``number`` is the last group that it has completed. Until it is ``live``, new groups wait
    in ``held`` (``held_bytes`` in all) behind the content that existed when it attached. ``counts``: completions wait
    for it; they do so up to ``until``, unless it is caught up, and never if it is ``optional``. ``waits``: the catch-up
    waits for room in its window. ``queues`` is set if each queue has a separate browser (LM3 as documented).
    """

    name: str
    until: float
    optional: bool
    since: float
    counts: bool
    state: str = CATCHUP
    number: int = -1
    live: bool = False
    under_way: int = 0
    waits: bool = False
    sent: int = 0
    caught_up_at: int = -1
    held: deque[tuple[int, list[Event]]] = field(default_factory=deque)
    held_bytes: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    queues: QueueBrowsers | None = None


class Browsing:
    """All backups that are attached to the primary of this ``generation``, by name; ``number`` is the last group, and
    ``released`` the last one that clients know to be completed.

    ``send`` sends a message to a backup; ``cut`` ends the connection to it, with a reason.
    """

    def __init__(self, broker: Broker, engine: StoreEngine, options: QpidOptions, configuration: Configuration,
                 generations: Generations, generation: int, send: Callable[[str, Message], None],
                 cut: Callable[[str, str], None]) -> None:
        self._broker, self._engine, self.options = broker, engine, options
        self._configuration, self._generations, self._generation = configuration, generations, generation
        self._levels = Levels(options, configuration)
        self._send, self._cut = send, cut
        self._documented = options.as_documented
        self.browsers: dict[str, Browser] = {}
        self.number = self.released = 0
        self.catching_up: dict[asyncio.Task[None], Browser] = {}
        """The running catch-up tasks, each with its backup."""

    def stop(self) -> None:
        """Stop sending."""
        for browser in self.browsers.values():
            if browser.task is not None:
                browser.task.cancel()

    def wire(self, position: int) -> list[int]:
        """Encode a position for backups."""
        return to_wire(position, self.options.sequence_bits, LM2 not in self._documented)

    # Progress.

    def completed_by_all(self) -> int:
        """Return the last group that all counting backups have completed."""
        counting = [browser for browser in self.browsers.values() if browser.counts]
        return min([self.number, *(browser.number for browser in counting)])

    def ready(self) -> set[str]:
        """Return the backups that have everything that is confirmed."""
        return {name for name, browser in self.browsers.items() if browser.counts and browser.state == READY}

    def give_up(self) -> None:
        """Stop waiting for backups that took too long to catch up."""
        now = self._broker.runtime.now()
        for browser in self.browsers.values():
            if browser.counts and browser.state == CATCHUP and browser.until <= now:
                browser.counts = False
                self._broker.runtime.log("backup given up", backup=browser.name, why="it does not catch up")

    def completed(self, name: str, number: int, groups: int) -> None:
        """Note that a backup has applied and stored every group up to ``number``, and ``groups`` more of those sent to
        it.
        """
        browser = self.browsers.get(name)
        if browser is None:
            return
        if browser.queues is not None:
            number = max(number, browser.queues.answered(groups))
        browser.number = max(browser.number, number)
        browser.under_way = max(0, browser.under_way - groups)
        browser.moved.set()
        if browser.state == CATCHUP and browser.caught_up_at >= 0 and browser.number >= browser.caught_up_at:
            self._caught_up(browser)

    def _caught_up(self, browser: Browser) -> None:
        """Handle a backup that has everything that existed when its last catch-up group was sent. If it had been given
        up, groups completed without it since then may still be in flight: completions wait for it again, and it is
        ready once it has those groups."""
        if browser.counts or browser.optional or browser.number >= self.released:
            browser.state, browser.counts = READY, not browser.optional
            self._broker.runtime.log("backup ready", backup=browser.name)
            return
        browser.counts, browser.caught_up_at = True, self.released
        browser.until = self._broker.runtime.now() + self.options.catchup_timeout

    # Events.

    def tell(self, events: list[Event]) -> None:
        """Send events that belong together to all backups, as the next group."""
        self.number += 1
        size = size_of(events)
        for browser in list(self.browsers.values()):
            told = events
            if LC6 in self._documented and not self._is_subscribed(browser):
                told = [event for event in events if event[0] != DELETE]
            if not browser.live:
                self._hold(browser, told, size)
            elif browser.queues is not None:
                browser.queues.tell(self.number, told)
            else:
                self._send_group(browser, self.number, told)

    def _is_subscribed(self, browser: Browser) -> bool:
        """Tell whether a backup receives deletions if its event subscription is separate from its query (LC6 as
        documented): it must have the result of the query, and its subscription arrives one beat after the query."""
        asked = browser.until - self.options.catchup_timeout
        return browser.live and browser.number >= 0 and self._broker.runtime.now() >= asked + self.options.beat

    def _hold(self, browser: Browser, events: list[Event], size: int) -> None:
        browser.held.append((self.number, events))
        browser.held_bytes += size
        if browser.held_bytes > self.options.catchup_backlog:
            # It attaches again with its present content; the held events are then among those that it lacks.
            self._cut(browser.name, "more happens than a backup that catches up takes")

    def _send_group(self, browser: Browser, number: int, events: list[Event]) -> None:
        browser.under_way += 1
        browser.sent += 1
        for part, more in parts_of(events, _CHUNKS_PER_PART * self.options.catchup_chunk):
            self._send(browser.name, EventGroup(number, self._generation, part, more))

    # Backups attach and leave.

    def attached(self, name: str, message: Attach) -> None:
        """Attach a backup, which begins to browse all queues."""
        self.detached(name)
        optional = name in self.options.disaster and not self.options.disaster_counted
        now = self._broker.runtime.now()
        browser = self.browsers[name] = Browser(name, now + self.options.catchup_timeout, optional, now,
                                                counts=not optional)
        self._broker.runtime.log("backup attached", backup=name, queues=len(message.queues))
        first, behind = self._differences(message)
        self._send_group(browser, 0, first)
        self._broker.runtime.point(ATTACHED)
        task = browser.task = self._broker.runtime.spawn(
            self._catch_up(browser, self.number, behind), f"browser of {name}")
        self.catching_up[task] = browser
        task.add_done_callback(self.catching_up.pop)

    def detached(self, name: str) -> None:
        """Remove a backup that has left."""
        browser = self.browsers.pop(name, None)
        if browser is None:
            return
        if browser.task is not None:
            browser.task.cancel()
        self._broker.runtime.log("backup gone", backup=name)

    def _differences(self, message: Attach) -> tuple[list[Event], dict[str, int]]:
        """Return the events that make a backup's queues equal to this broker's, except for messages missing at their
        ends, and for each queue the position of the last message that the backup has."""
        objects = [(kind, name, dict(arguments)) for (kind, name), arguments in self._configuration.items()
                   if self._levels.of(kind, name, arguments) != NONE]
        events: list[Event] = [[SNAPSHOT, self._configuration.number, [list(each) for each in objects]]]
        told = {queue[0]: queue for queue in message.queues}
        behind: dict[str, int] = {}
        positions = self._engine.positions()
        held = self._engine.held()
        for kind, name, arguments in objects:
            if kind != QUEUE or self._levels.of(kind, name, arguments) != MESSAGES:
                continue
            ours, last = held.get(name, set()), positions.get(name, 0)
            created = arguments.get(CREATED, "")
            same = name in told and told[name][1] == created
            _, _, generations, at, pieces = told[name] if same else [name, created, [], [0, 0], []]
            theirs = from_wire(at, self.options.sequence_bits, LM2 not in self._documented, last)
            having = {position for first, count in pieces for position in range(first, first + count)}
            if LM1 in self._documented:
                behind[name] = max(0, theirs)
                events += [[DEQUEUE, name, self.wire(each)] for each in sorted(having - ours) if each <= last]
                continue
            agreed = agreement(self._generations.of(name), last, [(g, f) for g, f in generations], theirs)
            lacking = [position for position in ours if position <= agreed and position not in having]
            if lacking:
                agreed = min(lacking) - 1  # that message is sent again, and so is everything after it
            if theirs > agreed:
                kept = [list(each) for each in until(self._generations.of(name), agreed)]
                events.append([RESET, name, self.wire(agreed), kept])
            events += [[DEQUEUE, name, self.wire(each)] for each in sorted(having - ours) if each <= agreed]
            behind[name] = agreed
        return events, behind

    async def _catch_up(self, browser: Browser, number: int, behind: Mapping[str, int]) -> None:
        """Send the messages that a backup lacks, then the events held in the meantime."""
        for group in self._pieces(behind):
            await _window(browser)
            self._send_group(browser, 0, group)
            self._broker.runtime.point(CATCH_UP_SENT)
            await asyncio.sleep(0)
        self._send_group(browser, number, [])
        while browser.held:
            await _window(browser)
            number, events = browser.held.popleft()
            browser.held_bytes -= size_of(events)
            self._send_group(browser, number, events)
        self._send_group(browser, number, [[CAUGHT_UP]])
        browser.live, browser.caught_up_at = True, number
        if LM3 in self._documented:
            browser.queues = QueueBrowsers(lambda events: self._send_group(browser, 0, events), browser.under_way)

    def _pieces(self, behind: Mapping[str, int]) -> Iterator[list[Event]]:
        """Yield the messages that a backup lacks, queue by queue, in groups."""
        events: list[Event] = []
        size = 0
        positions = self._engine.positions()
        lasts = {queue: positions.get(queue, 0) for queue in behind}
        lacking = self._engine.browse_beyond({queue: at for queue, at in behind.items() if lasts[queue] > at})
        for queue, messages in lacking:
            last = lasts[queue]
            for held in messages:
                if held.sequence > last:
                    break  # it arrived during the catch-up, and is held for the backup
                generation = self._numbered_by(queue, held.sequence)
                events.append([ENQUEUE, queue, generation, self.wire(held.sequence), dict(held.headers), held.body])
                size += len(held.body)
                if size >= self.options.catchup_chunk:
                    yield events
                    events, size = [], 0
            # Messages at the end may be gone already; the numbering still continues after them.
            kept = [list(each) for each in until(self._generations.of(queue), last)]
            events.append([RESET, queue, self.wire(last), kept])
        if events:
            yield events

    def _numbered_by(self, queue: str, position: int) -> int:
        return max((generation for generation, first in self._generations.of(queue) if first <= position), default=0)


async def _window(browser: Browser) -> None:
    """Wait until the window has room for one more group."""
    while browser.under_way >= WINDOW_GROUPS:
        browser.moved.clear()
        browser.waits = True
        await browser.moved.wait()
        browser.waits = False
