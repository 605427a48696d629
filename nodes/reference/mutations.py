"""Bugs that are edits of single functions: the brokers' code holds nothing of them until one is switched on.

Each replaces a piece of the source of one function by another (mutation testing: DeMillo, Lipton and Sayward, "Hints
on Test Data Selection", 1978), so that a bug can be put anywhere without a line for it there. The edited source is
compiled anew and its code put into the function that is there, wherever it is already referred to.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from nodes.reference.api import ConfigError

_ROOT = "nodes.reference"


class StaleEditError(Exception):
    """An edit's function, or the piece of its source, is not there any more."""


@dataclass(frozen=True)
class Edit:
    """In ``function`` of ``module`` (below ``nodes.reference``), ``old`` becomes ``new``; ``old`` is there once.

    Where the module has several functions of that name, it is the one with ``old`` in it.
    """

    module: str
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A bug: what is wrong, in which design, made by which edits."""

    name: str
    design: str
    summary: str
    edits: tuple[Edit, ...]


_originals: dict[FunctionType, CodeType] = {}
"""The code of each function that is edited now, as it was."""
_present: frozenset[str] = frozenset()


def switch(names: Iterable[str]) -> None:
    """Make these mutations, and no others, the present state of this process's code.

    Raises:
        StaleEditError: an edit does not fit the source any more; nothing is changed then.
        ConfigError: two of them edit the same function; likewise.
    """
    global _present
    wanted = frozenset(names) & MUTATIONS.keys()
    if wanted == _present:
        return
    edited: dict[FunctionType, CodeType] = {}
    for name in sorted(wanted):
        for function, code in codes_of(name):
            if function in edited:
                raise ConfigError(f"options.bug: {name} edits what another bug edits; switch on one of them")
            edited[function] = code
    for function, code in _originals.items():
        function.__code__ = code
    _originals.clear()
    for function, code in edited.items():
        _originals[function] = function.__code__
        function.__code__ = code
    _present = wanted


def edited_now() -> frozenset[str]:
    """The mutations that are switched on in this process."""
    return _present


@cache
def codes_of(name: str) -> tuple[tuple[FunctionType, CodeType], ...]:
    """The functions that a mutation edits, each with its edited code.

    Raises:
        StaleEditError: an edit does not fit the source any more.
    """
    return tuple(_edited(edits) for edits in _by_function(MUTATIONS[name].edits))


def _by_function(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    grouped: dict[tuple[str, str], list[Edit]] = {}
    for edit in edits:
        grouped.setdefault((edit.module, edit.function), []).append(edit)
    yield from grouped.values()


def _edited(edits: list[Edit]) -> tuple[FunctionType, CodeType]:
    """The function that these edits are in, and its code with all of them."""
    first = edits[0]
    module = importlib.import_module(f"{_ROOT}{first.module}" if first.module.startswith(".") else first.module)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    having = [place for place in _places(ast.parse(source), first.function) if first.old in _text(source, place)]
    if len(having) != 1:
        raise StaleEditError(f"{first.module}: {len(having)} functions {first.function} have {first.old!r}")
    qualname, begin, end = having[0]
    lines = source.splitlines(keepends=True)
    text = "".join(lines[begin:end])
    for edit in edits:
        if text.count(edit.old) != 1:
            raise StaleEditError(f"{first.module}: {qualname} has {text.count(edit.old)} times {edit.old!r}")
        text = text.replace(edit.old, edit.new)
    source = "".join(lines[:begin]) + text + "".join(lines[end:])
    whole = compile(source, str(module.__file__), "exec", dont_inherit=True)
    return _function(module, qualname), _code(whole, qualname)


def _text(source: str, place: tuple[str, int, int]) -> str:
    return "".join(source.splitlines(keepends=True)[place[1] : place[2]])


def _places(node: ast.AST, name: str, within: str = "") -> Iterator[tuple[str, int, int]]:
    """Qualified name, first line (from 0) and last of each function of a name, of a module or of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _places(child, name, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            yield within + name, child.lineno - 1, child.end_lineno or child.lineno


def _function(module: object, qualname: str) -> FunctionType:
    found: object = module
    *classes, name = qualname.split(".")
    for each in classes:
        found = getattr(found, each)
    found = vars(found)[name]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise StaleEditError(f"{qualname} is not a plain function")
    return found


def _code(whole: CodeType, qualname: str) -> CodeType:
    for constant in whole.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualname:
                return constant
            if qualname.startswith(f"{constant.co_qualname}."):
                return _code(constant, qualname)
    raise StaleEditError(f"{qualname} is not there")


def _one(name: str, design: str, summary: str, place: str, old: str, new: str) -> Mutation:
    """A mutation of one function: ``place`` is ``module:function``."""
    module, _, function = place.partition(":")
    return Mutation(name, design, summary, (Edit(module, function, old, new),))


def _several(name: str, design: str, summary: str, *edits: tuple[str, str, str]) -> Mutation:
    places = [(place.partition(":"), old, new) for place, old, new in edits]
    return Mutation(name, design, summary, tuple(Edit(at[0], at[2], old, new) for at, old, new in places))


_CLOCK = 'float("-inf")'

_SURFACE = (
    _one("abort-settles", "standalone", "what a transaction has acknowledged is gone though it was aborted",
         ".engine.transactions:abort",
         '        self._end(self._transaction(context, command.args["tx"]), ABORTED)\n',
         '        transaction = self._transaction(context, command.args["tx"])\n'
         '        plan = self._plan(context, [item for item in transaction.items if item.kind != "send"])\n'
         "        self._end(transaction, ABORTED)\n"
         "        for item, messages in plan:\n"
         "            self._destinations.finish(item.kind, messages)\n"),
    _one("ack-covers-later", "standalone", "an ACK in mode client covers what was delivered after it, too",
         ".engine.model:covered", "            if out_seq > message.out_seq:\n                break\n", ""),
    _one("given-back-last", "standalone", "what is given back waits behind all others",
         ".engine.model:requeue", "heapq.heappush(self.returned, (message.id, message))", "self.fresh.append(message)"),
    _one("durable-keeps-pattern", "standalone",
         "a durable subscription that is taken up with another pattern keeps the old one",
         ".engine.destinations:_topic_queue", "elif queue.pattern == pattern:", "elif queue.pattern:"),
    _one("pattern-one-word", "standalone", "`>` stands for exactly one more word", ".engine.topics:_selecting",
         "matches(queue.pattern, topic)", 'matches(queue.pattern.replace(">", "*"), topic)'),
    _one("recover-tells-all", "standalone", "RECOVER lists the branches of other logins, too",
         ".engine.transactions:recover", " if owner == login]", "]"),
    _one("xid-again", "standalone", "a branch may begin under an XID that has ended",
         ".engine.transactions:_check_new", "in self._state.outcomes:", "in ():"),
    _one("outcome-agreed", "standalone", "COMMIT of a branch that was aborted is confirmed",
         ".engine.transactions:_prepared", "if ended == outcome:", "if ended is not None:"),
    _one("sends-reversed", "standalone", "messages of a transaction are sent in reverse",
         ".engine.transactions:commit", "for item, messages in plan:", "for item, messages in reversed(plan):"),
    _one("repeated-header-last", "standalone", "of a header that a frame has twice the last counts",
         "nodes.stomp:_parse_head", "headers.setdefault(name, value)", "headers[name] = value"),
    _one("principal-gone-stays", "standalone", "connections of a principal that was deleted go on",
         ".engine.engine:_withdraw", "if gone or not all(", "if not gone and not all("),
    _one("commit-unchecked", "standalone", "a right that was withdrawn is not missed at COMMIT",
         ".engine.engine:_demand_sends", "if self.security.enabled else None", "if self.security is None else None"),
    _one("bound-first-only", "qpid", "an exchange brings a message to the first queue that matches only",
         ".engine.destinations:_bound", "        return queues\n", "        return queues[:1]\n"),
    _one("bindings-outlive", "qpid", "an exchange that is deleted leaves its bindings to the next of its name",
         ".designs.qpid.configuration:bindings_of", "arguments[kind] == name]",
         "kind != EXCHANGE and arguments[kind] == name]"),
    _one("level-by-default-only", "qpid", "`qpid.replicate` among a queue's arguments is not looked at",
         ".designs.qpid.options:level", 'arguments.get("qpid.replicate")', "None"),
    _one("cost-not-looked-at", "icestorm", "events pass links whatever they cost",
         ".designs.icestorm.delivery:publish", "int(headers.get(COST, \"0\"))", "0"),
    _one("unlink-one-way", "icestorm", "UNLINK leaves the link where the topic has another",
         ".designs.icestorm.topics:_change", "            del topic.links[change[2]]\n",
         "            if len(topic.links) == 1:\n                del topic.links[change[2]]\n"),
    _several("destroyed-subscribers", "icestorm", "a topic that is made again has the subscribers of the one before",
             (".designs.icestorm.topics:_change", "            self.topics[name] = Topic(name)\n",
              "            self.topics[name] = Topic(name)\n"
              "            former = getattr(self, \"_former\", {}).get(name)\n"
              "            if former is not None:\n"
              "                self.topics[name].subscribers.update(former)\n"),
             (".designs.icestorm.topics:_change", "            del self.topics[name]\n",
              "            self._former = {**getattr(self, \"_former\", {}),\n"
              "                            name: dict(self.topics[name].subscribers)}\n"
              "            del self.topics[name]\n")),
    _one("grants-of-group", "fiorano", "a right to one object counts for those whose names begin alike",
         ".engine.security:covers", "if granted == asked:", "if asked.startswith(granted):"),
    _one("passcode-of-former", "fiorano", "the former passcode goes on to be right",
         ".engine.security:_change_passcode",
         "        self._remove(PRINCIPAL, name)\n        self._add_principal(name, said)\n", ""),
)

_SCHEDULE = (
    _one("redelivery-not-stored", "standalone", "after a start messages have no redeliveries",
         ".engine.state:_restore_messages", "message.redeliveries = redeliveries", "message.redeliveries = 0"),
    _one("session-of-former", "standalone", "a session that was taken over closes the context when it ends",
         ".server.broker:_attach", "                older.conn = None\n", ""),
    _one("idle-timer-goes-on", "standalone",
         "a connection that is resumed is closed when the timer of before runs out",
         ".server.broker:open", "            self._stop_idle_timer(conn)\n", ""),
    _one("last-waits-first", "standalone",
         "of two sessions that wait for a connection the later one is told the answer to the earlier",
         ".server.broker:_next_waiting", "waiting.pop(0)", "waiting.pop()"),
    _one("assigned-not-stored", "standalone", "what a prepared branch has taken is free again after a start",
         ".engine.state:assign", "        self.delivery_table.update(message.id, message)\n", ""),
    _one("note-received-late", "standalone", "one message more than a client has received is consumed",
         ".engine.engine:_note_received", "m.out_seq <= received]", "m.out_seq <= received + 1]"),
    _one("lease-since-heard", "joram", "a lease runs from when the answer came, not from when the question was sent",
         ".designs.joram.leader:heard", "self._lease.heard(peer, echo)",
         f"self._lease.heard(peer, self._replica.now() if echo > {_CLOCK} else echo)"),
    _one("promise-unwritten", "joram", "a promise is in memory only", ".designs.joram.replica:promise",
         "            self.note_promised(epoch)\n            self.persist()\n", ""),
    _one("serves-before-own-entry", "joram", "a master serves before an entry of its epoch is committed",
         ".designs.joram.leader:_flush", "elif replica.committed >= self._epoch_start:",
         "elif replica.committed >= 0:"),
    _one("changes-overlap", "joram", "a change of the group may begin while one is under way",
         ".designs.joram.leader:_may_regroup", " or index > replica.committed:", ":"),
    _several("learners-count", "joram", "who learns counts for majorities",
             (".designs.joram.leader:_committed", " if name in self._replica.order}", "}")),
    _one("longest-log-best", "joram", "the longest log is the most complete, whatever its epochs",
         ".designs.joram.decisions:best_log", "if position.last > positions[best].last:",
         "if position.last.idx > positions[best].last.idx:"),
    _one("no-rest-after-start", "joram", "a replica that has just started votes at once",
         ".designs.joram.election:_refusal", "resting=replica.now() < self._rests_until", "resting=False"),
    _one("marks-end-early", "joram", "rows that change while the second step is sent are not sent",
         ".replication.transfer:_copy", "            yield from self._encode(self._swap())\n        self.at",
         "            yield from self._encode(self._swap())\n            self._take_marked()\n"
         "            self._marked.clear()\n        self.at"),
    _one("state-without-group", "joram", "a state that is taken over leaves the group of before",
         ".designs.joram.log:reset", "        self._groups = [(self.base, members_of(group))]\n",
         "        self._groups = [(self.base, self._groups[-1][1])]\n"),
    _one("promise-twice", "icestorm", "an epoch is promised to two coordinators",
         ".designs.icestorm.election:asked_to_promise", "epoch <= self._database.promised",
         "epoch < self._database.promised"),
    _one("installs-other-epoch", "icestorm", "a database of another epoch than was promised is taken",
         ".designs.icestorm.election:told_to_install", " or epoch != self._database.promised", ""),
    _one("normal-below-majority", "icestorm", "a coordinator that loses its majority stays normal until its next look",
         ".designs.icestorm.election:drop", "1 + len(self.up) < self.needed", "1 + len(self.up) < 1"),
    _one("members-not-invited", "icestorm",
         "the members of a coordinator that is invited are not passed the invitation",
         ".designs.icestorm.election:_accept", "[name for name in former if name != inviter]", "[]"),
    _one("confirms-before-answers", "icestorm", "a change is confirmed when it was sent to a majority",
         ".designs.icestorm.replication:change",
         "            answers = await self._peers.ask_all("
         "members, \"update\", group, epoch, list(stamp), list(change))\n",
         "            self._runtime.spawn(self._tell_later(members, group, epoch, stamp, change), \"update\")\n"
         "            answers = dict.fromkeys(members, True)\n"),
    _one("update-gap-taken", "icestorm", "an update that does not follow the last is applied",
         ".designs.icestorm.replication:told_to_update", " or not following", ""),
    _one("created-not-compared", "qpid", "a queue that was deleted and made again counts as the one before",
         ".designs.qpid.browsing:_differences", " and told[name][1] == created", ""),
    _one("agreement-by-one", "qpid", "a backup is told to keep one message more than both agree on",
         ".designs.qpid.positions:agreement", "min(first - 1, our_last, their_last)",
         "min(first, our_last, their_last)"),
    _one("group-in-parts", "qpid", "parts of a group are stored as they come",
         ".designs.qpid.backup:_whole", "if not part.more and not self._begun:", "if part.events or not self._begun:"),
    _one("held-before-live", "qpid", "what happened during a catch-up is told before what was there",
         ".designs.qpid.browsing:_catch_up", "        for group in self._pieces(behind):\n",
         "        pieces = list(self._pieces(behind))\n"
         "        while browser.held:\n"
         "            number, events = browser.held.popleft()\n"
         "            browser.held_bytes -= size_of(events)\n"
         "            self._send_group(browser, number, events)\n"
         "        browser.live, browser.caught_up_at = True, number\n"
         "        for group in pieces:\n"),
    _one("eligible-after-loss", "qpid", "a backup that had begun to catch up stays eligible when it loses its primary",
         ".designs.qpid.roles:_lose_primary", "self.was_ready = self._has_all", "self.was_ready = True"),
    _one("permission-once", "qpid", "whether the manager lets it go on is asked until it says so once",
         ".designs.qpid.primary:_may_complete",
         "        return self._permission.holds() and self._permission.recorded(self.excluded)\n",
         "        self._asked_once = getattr(self, \"_asked_once\", False) or (\n"
         "            self._permission.holds() and self._permission.recorded(self.excluded))\n"
         "        return self._asked_once\n"),
    _one("epoch-not-noted", "fiorano", "an epoch that is asked for is not written down",
         ".designs.fiorano.lock:_proposal", "            self._note(self._asked)\n", ""),
    _one("release-trusted", "fiorano", "a lock that is being released counts as held until the answer",
         ".designs.fiorano.lock:_talk", "self._until = -math.inf", "pass"),
    _one("settled-while-asked", "fiorano", "what was asked for and may yet be granted counts as never used",
         ".designs.fiorano.lock:settled", "not self._outstanding and ", ""),
    _several("page-missing", "fiorano", "a synchronisation is complete though pages that followed a change were lost",
             (".designs.fiorano.standby:_take", "            self._tables.stage()\n",
              "            self._tables.stage()\n            self._begun_at = message.counter\n"),
             (".designs.fiorano.standby:_take",
              "            self._tables.write(message.table, message.rows, (), staged=True)\n",
              "            if stamp.counter == self._begun_at:\n"
              "                self._tables.write(message.table, message.rows, (), staged=True)\n")),
    _one("alone-unshared", "fiorano", "an active server goes on alone before its epoch is in its repository",
         ".designs.fiorano.active:may_go_alone", " and self._repository.stamp.epoch == self._lock.epoch", ""),
    _one("commit-after-loss", "fiorano", "what is on its way to the database when the lock is lost is confirmed",
         ".designs.fiorano.shared:_let_go", "        self._waiting.clear()\n",
         "        while self._waiting:\n            self._broker.release(self._waiting.popleft()[1])\n"),
)

_TIME = (
    _one("idle-by-parts", "standalone", "each part of the idle time lasts as long as the whole",
         ".server.broker:_start_idle_timer", "self.limits.idle_timeout / _IDLE_PARTS", "self.limits.idle_timeout"),
    _one("turns-queue", "standalone", "a place that has become free in a window is filled when the next message comes",
         ".engine.destinations:_take_back",
         "            message.queue.update_room(subscription)\n"
         "        self._touched[message.queue.id] = message.queue\n",
         "            message.queue.update_room(subscription)\n"),
    _one("dials-rarely", "joram", "a link is dialled again after forty times the usual time",
         ".replication.links:_dial", "asyncio.sleep(self._retry * ", "asyncio.sleep(40 * self._retry * "),
    _one("turns-of-twenty", "joram", "a candidate waits twenty time-outs for each before it",
         ".designs.joram.election:_turn", "return 2 * ", "return 20 * "),
    _one("suspects-early", "joram", "a member is suspected after a third of the time-out",
         ".designs.joram.leader:_is_silent", "options.detection_timeout", "options.detection_timeout / 3"),
    _one("heartbeats-late", "joram", "a master that is idle sends nothing for almost the time-out",
         ".designs.joram.design:_informed", "in_touch(self._options.heartbeat_interval / 2)",
         "in_touch(self._options.detection_timeout - self._options.heartbeat_interval)"),
    _one("merges-lowest-first", "icestorm", "the coordinator of the highest priority waits longest",
         ".designs.icestorm.decisions:merge_delay",
         "timeout * (1 + (highest - ident) / replicas) if highest > ident else 0.0",
         "timeout * (1 + ident / replicas)"),
    _one("looks-rarely", "icestorm", "a coordinator looks around every ten time-outs",
         ".designs.icestorm.election:_run", "            # A little less",
         "            idle *= 10 if self.leads else 1\n"
         "            # A little less"),
    _one("election-without-end", "icestorm", "an election that does not end is given up after twenty time-outs",
         ".designs.icestorm.election:_enter", "+ 2 * self._options.election_timeout",
         "+ 20 * self._options.election_timeout"),
    _one("window-of-one", "qpid", "a backup is sent the next group when it has completed all before",
         ".designs.qpid.browsing:_window", "browser.under_way >= _WINDOW", "browser.under_way >= 1"),
    _one("gives-up-late", "qpid", "a slow backup is given up after twenty times its time",
         ".designs.qpid.browsing:give_up", "browser.until <= now",
         "browser.until + 19 * self._options.catchup_timeout <= now"),
    _one("ballots-rarely", "qpid", "a manager without a primary asks for votes every twentieth turn",
         ".designs.qpid.manager.coordinator:tick", "            self._ask(sure=False)\n",
         "            self._passed = getattr(self, \"_passed\", 0) + 1\n"
         "            if self._passed % 20 == 0:\n"
         "                self._ask(sure=False)\n"),
    _one("expected-for-long", "qpid", "backups that are expected are awaited ten times as long",
         ".designs.qpid.primary:tick", "if deadline <= now]",
         "if deadline + 9 * self._options.catchup_timeout <= now]"),
    _one("asks-each-lease", "fiorano", "a gateway that was away is tried again after ten leases",
         ".designs.fiorano.lock:_talk_forever", "asyncio.sleep(lease / _RENEWALS)", "asyncio.sleep(10 * lease)"),
    _one("renews-late", "fiorano", "a lease is renewed when it has almost ended",
         ".designs.fiorano.lock:_talk", "within(lease / _RENEWALS)", "within(0.95 * lease)"),
    _one("hello-late", "fiorano", "servers tell each other how they are at the next change only",
         ".designs.fiorano.server:link_up", "        self.greet()\n", ""),
)

_GROWTH = (
    _one("closed-for-ever", "standalone", "why connections were closed is remembered of all",
         ".engine.state:remember_closed", "if len(self.closed) > count:", "if len(self.closed) < 0:"),
    _one("outcomes-for-ever", "standalone", "the ends of all branches are remembered",
         ".engine.state:remember_outcome", "if len(self.outcomes) > count:", "if len(self.outcomes) < 0:"),
    _one("waiters-stay", "standalone", "connections that nobody waits for stay in the table of those who wait",
         ".server.broker:_next_waiting", "            del self._waiting[conn]\n", "            pass\n"),
    _one("shared-stays", "standalone", "what a topic's message held stays when its last copy is gone",
         ".engine.state:remove_message", "                self._shared_table.remove(shared.id)\n", ""),
    _one("deliveries-stay", "standalone", "the row of a delivery stays when its message is consumed",
         ".engine.state:remove_message", "        self.delivery_table.remove(message.id)\n", ""),
    _one("log-held-for-ever", "joram", "the log is held for a peer that is gone",
         ".designs.joram.leader:compact", "hold = max(hold, log.last - 8 * options.log_keep)", "pass"),
    _one("views-for-ever", "joram", "views that the log has left behind stay in memory",
         ".designs.joram.log:_forget_upto", "        self._views = _forget(self._views, upto)\n", ""),
    _one("marks-stay", "joram", "rows are marked on when a transfer has ended",
         ".replication.transfer:unwatch", " if each is not marked]", "]"),
    _one("outboxes-stay", "icestorm", "the events of a subscriber that has left stay",
         ".designs.icestorm.delivery:forget_gone", "                del self._outboxes[(topic, ident)]\n", ""),
    _one("flying-stay", "icestorm", "what was under way when a connection broke is kept twice",
         ".designs.icestorm.delivery:_take_back", "        self._flying.clear()\n", ""),
    _one("generations-stay", "qpid", "each message is noted as the beginning of a generation",
         ".designs.qpid.positions:note", "if not known or known[-1][0] != generation:",
         "if not known or known[-1] != (generation, position):"),
    _one("later-stays", "qpid", "what is held for a backup that is gone stays",
         ".designs.qpid.browsing:detached", "        if browser.task is not None:\n",
         "        self._former = [*getattr(self, \"_former\", ()), browser]\n        if browser.task is not None:\n"),
    _one("copies-stay", "qpid", "a primary keeps all that it had copied as a backup",
         ".designs.qpid.backup:forget", "        self._queues.forget()\n", "        pass\n"),
    _one("staged-stays", "fiorano", "pages of a synchronisation that was broken off stay in the database",
         ".designs.fiorano.tables:drop_staged", "        for name in COLUMNS:\n", "        for name in ():\n"),
    _one("untold-stays", "fiorano", "changes that the standby has stored are kept to be told again",
         ".designs.fiorano.active:stored", "        standing.moved.set()\n",
         "        standing.moved.set()\n"
         "        self._untold = [*getattr(self, \"_untold\", ()), message]\n"),
)

_WORK = (
    _one("entries-twice", "joram", "the master sends each follower all entries twice",
         ".replication.replicator:_send", "        replica.links.send(self._peer, frame)\n",
         "        replica.links.send(self._peer, frame)\n        replica.links.send(self._peer, frame)\n"),
    _several("heartbeats-ten-times", "joram", "heartbeats are sent ten times too often, and to all",
             (".designs.joram.design:_tick_forever", "heartbeat_interval / 2", "heartbeat_interval / 20"),
             (".designs.joram.design:_tick", "but=self._informed()", "but=()")),
)

_FOUND_BY_OTHERS = (
    _one("in-use-by-login", "standalone",
         "a durable subscription that another connection of the login uses may be deleted",
         ".engine.destinations:_delete_durable", "consumer.context is not context",
         "consumer.context.login != context.login"),
    _one("wide-pattern-covered", "fiorano", "a right to topics of one level counts for all levels below",
         ".engine.security:covers", " and (not topic.endswith(\">\") or pattern.endswith(\">\"))", ""),
    _one("revoked-consumer-stays", "fiorano", "who has lost the right to consume goes on to",
         ".engine.security:_revoke", 'Outcome(reduced=_named(said, "login", _LOGIN))', "Outcome(reduced=login)"),
    _one("security-page-overlaps", "fiorano", "each page of a list begins with the last entry of the one before",
         ".engine.security:_list", "if place <= said", "if place < said"),
    _one("standby-names-itself", "fiorano", "who does not serve names itself as the one that does",
         ".designs.fiorano.design:admission", "client_addresses.get(self._options.peer)",
         "client_addresses.get(self._name)"),
    _one("shared-epochs-forgotten", "fiorano", "a server that stops serving forgets of which epochs its standby is",
         ".designs.fiorano.pair:_entered", "            self._above = self._shared_epoch()\n", ""),
    _one("met-forgotten", "fiorano", "a server that waits again counts as one that has just been started",
         ".designs.fiorano.pair:_entered", "self._met or line.to != WAITING", "line.to != WAITING"),
    _one("own-lock-awaited", "fiorano", "whoever holds the lock waits for its end to get a later epoch",
         ".designs.fiorano.gateway.grants:is_taken", " and self.record.holder != name", ""),
    _one("lease-from-answer", "fiorano", "a lease of the lock runs from when the answer came",
         ".designs.fiorano.lock:_granted", "sent + self._options.lease", "self._runtime.now() + self._options.lease"),
    _one("asked-at-next-turn", "fiorano", "what is wanted of the lock is asked at the next turn only",
         ".designs.fiorano.lock:want", "            self._wake.set()\n", ""),
    _one("clients-told-configured", "joram", "clients are told of the replicas of the configuration, not of the group",
         ".designs.joram.design:admission", "for member in self._replica.group if member.client)",
         "for member in self._replica.configured if member.client)"),
    _one("removed-still-listed", "joram", "the status lists a replica that was removed",
         ".designs.joram.design:status", '"replicas": list(replica.order),',
         '"replicas": [member.name for member in replica.places],'),
    _one("removal-counts-itself", "joram", "a replica is removed though no majority of the others is there",
         ".designs.joram.leader:remove_replica", "if len(staying) < majority(others):",
         "if len(self.members) < majority(others):"),
    _one("truncated-group-stays", "joram", "a change of the group that is cut off the log goes on to count",
         ".designs.joram.log:truncate", "            self.regrouped()\n", ""),
    _one("stood-still-adds-up", "joram", "a node forgives all silence once it has run for a time-out",
         ".designs.joram.design:_tick_forever", "            last = now\n", ""),
    _one("leaver-is-awaited", "joram", "a replica that says that it leaves is waited for",
         ".designs.joram.design:_leave", "        self._replica.links.forget(peer)\n", ""),
    _one("adoption-outlives-source", "joram", "a candidate waits for a log whose source it has lost",
         ".designs.joram.election:lost_link", "elif self.phase == ADOPTING and peer in self._promises:",
         "elif self.phase == ADOPTING and peer in self._answers:"),
    _one("own-epoch-unpromised", "joram", "a candidate does not promise its own epoch",
         ".designs.joram.election:_propose", "        replica.promise(self._epoch)\n", ""),
    _one("most-are-all", "joram", "with ack=all a majority is enough", ".designs.joram.decisions:committed_index",
         'return by_majority if ack == "majority" else min(by_majority, *of_view)', "return by_majority"),
    _one("told-with-entries-only", "joram", "a heartbeat does not tell a follower what is committed",
         ".designs.joram.design:_claimed", "            received.commit(beat.commit)\n", ""),
    _one("piece-by-piece", "joram", "each piece of a state is sent when the one before has arrived",
         ".replication.replicator:_pump_state", "self._acked_chunks + CHUNK_WINDOW", "self._acked_chunks + 1"),
    _one("newest-view-told", "joram", "a state comes with the newest view, committed or not",
         ".designs.joram.log:view_at", "_newest(self._views, index)", "_newest(self._views, self.last)"),
    _one("goodbye-unanswered", "icestorm", "DISCONNECT is never confirmed",
         ".designs.icestorm.design:submit", ' and command.args.get("receipt") is None:', ":"),
    _one("waits-for-all-replicas", "icestorm", "an election waits for who was not invited, too",
         ".designs.icestorm.election:accepted", "if all(name in self.up for name in self._issued):",
         "if len(self.up) == len(self.replicas) - 1:"),
    _one("dead-link-kept", "icestorm", "the link of a peer that does not answer is kept",
         ".designs.icestorm.peers:ask", '            self._links.cut(peer, reason=f"no answer to {question}")\n', ""),
    _one("refused-update-counts", "icestorm", "a replica that refuses a change counts as if it had it",
         ".designs.icestorm.replication:change", "if not answers.get(name)])", "if name not in answers])"),
    _one("deliveries-go-on", "icestorm", "whoever delivered to a subscriber that has left goes on to wait",
         ".designs.icestorm.delivery:stop", "        self._task.cancel()\n", ""),
    _one("answer-not-noted", "qpid", "a manager does not note that it has backed a primary",
         ".designs.qpid.manager.manager:_heard", "            self._answers.backed(now)\n", "            pass\n"),
    _one("votes-though-heard", "qpid", "a manager that hears the coordinator votes for another",
         ".designs.qpid.manager.coordinator:asked", ' and known in ("", peer)', ""),
    _one("note-not-handed-on", "qpid", "a new primary's manager does not learn whom earlier ones went on without",
         ".designs.qpid.manager.services:_promote_if_due",
         "note = max(record.note, Note(term, 0, self._lacking), key=lambda each: each.order)", "note = record.note"),
    _one("granted-since-answered", "qpid", "what a manager grants counts from when its answer comes",
         ".designs.qpid.lease_client:_take", "max(self._until, sent + seconds)",
         "max(self._until, self._runtime.now() + seconds)"),
    _one("removed-not-noted", "qpid", "a primary goes on without a backup that its broker URL names no more, unnoted",
         ".designs.qpid.primary:excluded", "self._urls.ever_named(self._name)", "self._urls.others(self._name)"),
    _one("first-is-enough", "icestorm", "a coordinator goes on when the first has accepted its invitation",
         ".designs.icestorm.election:accepted",
         "        if all(name in self.up for name in self._issued):\n            self._accepted.set()\n",
         "        self._accepted.set()\n"),
    _one("due-since-before", "icestorm", "a coordinator takes the time to invite others from a group of before",
         ".designs.icestorm.election:_may_merge",
         "if self._merge_due is None or self._merge_due[0] != self.group:", "if self._merge_due is None:"),
    _one("newest-of-its-own", "icestorm", "a new epoch need not be newer than what members have promised",
         ".designs.icestorm.election:_agree", "max([self._database.promised, *newest.values()])",
         "self._database.promised"),
    _one("slow-is-dead", "icestorm", "a coordinator that waits for a slow slave is taken for dead",
         ".designs.icestorm.design:_request", "patient=True, ", ""),
    _one("given-to-all", "icestorm", "members are given the database that they have",
         ".designs.icestorm.election:_agree", "None if stamps[name] == stamps[best] else dump", "dump"),
    _one("wake-lost", "standalone", "what is submitted while effects are handed out waits for the next command",
         ".designs.standalone:_run", "            self._wake.clear()\n            self._commit()\n",
         "            self._commit()\n            self._wake.clear()\n"),
    _one("never-cut-off", "standalone", "a client that was told why it is ended is never cut off",
         ".server.output_buffer:finish", "        self._loop.call_later(self._limits.linger, transport.abort)\n", ""),
    _one("error-unnamed", "standalone", "an ERROR about a frame does not name the receipt that was asked for",
         ".server.sessions:_command_of",
         '                fault.headers = {**fault.headers, "receipt-id": asked}\n', "                pass\n"),
    _one("network-beats-rare", "joram", "servers say something to each other in every five times network_timeout",
         ".server.networks:_tick", "self._silence / 5", "self._silence * 5"),
    _one("passcodes-rest", "standalone", "twenty passcodes are hashed in a hundred seconds, and others have to wait",
         ".server.guard:_count", "if now - self._window >= 1:", "if now - self._window >= 100:"),
    _one("redials-rarely", "joram", "a server that can't be reached is called again ten times later",
         ".server.networks:_send_to", "self._retry * (0.5", "10 * self._retry * (0.5"),
    _one("loss-untold", "fiorano", "who waits for an answer of the shared database is not told that it is lost",
         ".storage.client:_lose", "waiting.set_exception(ConnectionAbortedError(reason))", "continue"),
    _one("aborted-under-way", "standalone", "a transaction that was aborted weighs on the next of its name",
         ".server.inflight:_in_transaction", '("commit", "abort", "prepare")', '("commit", "prepare")'),
    _one("confirms-after-loss", "icestorm", "a coordinator answers though most have just left its group",
         ".designs.icestorm.replication:_confirm",
         "not answers.get(name)])\n        if election.group != group or election.state != NORMAL:\n"
         "            raise Unavailable\n", "not answers.get(name)])\n"),
    _one("brought-not-awaited", "icestorm", "a coordinator does not wait for those that its members bring",
         ".designs.icestorm.election:accepted", "        self._issued.update(self._brought)\n", ""),
    _one("leads-without-patience", "qpid", "a broker that is made primary ends itself if not let go on as such at once",
         ".designs.qpid.lease_client:lead", ", self._patience = -math.inf, self._runtime.now() + 2 * self._lease",
         " = -math.inf"),
    _one("adopted-unreleased", "fiorano", "what waits is not confirmed when a server has got a later epoch of the lock",
         ".designs.fiorano.active:adopt_epoch", "        self.release()\n", ""),
    _one("adopted-untold", "fiorano", "the standby is not told of a later epoch of the lock",
         ".designs.fiorano.active:adopt_epoch", "            if self.shares:\n                self._tell([])\n", ""),
)

MUTATIONS: Mapping[str, Mutation] = {
    each.name: each for each in (*_SURFACE, *_SCHEDULE, *_TIME, *_GROWTH, *_WORK, *_FOUND_BY_OTHERS)
}
"""All of them, by name."""
