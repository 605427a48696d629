"""Bugs of the design ``qpid`` that can be switched on."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import Bug, edit, pieces

_BACKLOG = {"producers": "6", "consumers": "1"}
_PRIMARY_KILLED = {"kill_kind": "master", "kill_program": "broker"}
_LINK_CUT = {**_PRIMARY_KILLED, "partition_kind": "link"}
_AHEAD = {
    **_BACKLOG, "kill_program": "broker", "detection_timeout": "1", "catchup_timeout": "1",
    "schedule": "partition:link:5-5.6:1 kill:master:5.4-5.6:1 partition:one:7-11:8 kill:master:9.5-10:1",
}
"""The primary is lost while one backup is ahead of the next primary; which is then lost, too."""
_LEFT_BEHIND = {**_BACKLOG, "catchup_timeout": "1", "schedule": "partition:master:4-11:1 crash:kill:9-11.5:1"}
"""All brokers are lost while an earlier primary's store is behind another's."""


def _bug(name: str, summary: str, nemesis: str, exercise: Mapping[str, str], *several: tuple[str, str, str]) -> Bug:
    return Bug(name, summary, exercise, "qpid", nemesis=nemesis, edits=pieces(*several))


BUGS = (
    _bug("completed-before-signal",
         "a message is completed before the backups have signalled completion", Bug.nemesis, {},
         (".designs.qpid.primary:release", "self.browsing.completed_by_all()", "self.browsing.number")),
    _bug("dequeue-not-sent", "backups do not receive dequeues", Bug.nemesis, {},
         (".designs.qpid.primary:dequeued", "if queue.kind != PLAIN or queue.name == self._deleting:", "if True:")),
    _bug("inquorate-broker-lives", "a broker continues after its manager's lease has expired", "partition,pause", {},
         (".designs.qpid.design:_tick_forever", "if self.permission is not None and self.permission.lost():",
          "if False:"),
         (".designs.qpid.roles:may_go_on", "return self._permission is None or self._permission.holds()",
          "return True"),
         (".designs.qpid.primary:_is_complete", "return self.permission is None or self.permission.holds()",
          "return True"),
         (".designs.qpid.primary:_may_complete", "if self.permission is None:", "if True:")),
    _bug("promoted-in-catchup", "a backup in catch-up counts as ready, and may be promoted", "packets,kill",
         {**_BACKLOG, "catchup_chunk": "1", "detection_timeout": "2", "kill_program": "broker", "max_down": "2",
          "schedule": "packets:delay:5-14:3 kill:one:6-6.2:6 kill:random:9.6-10.6:7"},
         (".designs.qpid.roles:_has_all", "self.state == READY", "self.state in (READY, CATCHUP)"),
         (".designs.qpid.browsing:ready", "browser.state == READY", "browser.state in (READY, CATCHUP)")),
    _bug("generation-not-stored", "a backup does not store its primary's generation", "partition,crash", _LEFT_BEHIND,
         (".designs.qpid.backup:apply", "generation = groups[-1].generation", "generation = status.generation")),
    _bug("dirty-store-starts", "a dirty store counts as a clean one, regardless of the shutdown", "partition,crash",
         _LEFT_BEHIND,
         (".designs.qpid.roles:_check_store", "        status = self.store.now\n",
          "        status = self.store.now\n"
          "        if status.state == DIRTY:\n"
          "            with self._broker.transaction():\n"
          "                self.store.write(state=CLEAN, uuid=\"0\")\n"),
         (".designs.qpid.roles:take_attach", "if message.uuid not in (\"\", self.store.now.uuid):", "if False:")),
    _bug("dead-backup-holds", "a departed backup holds completions for ever", "kill", {"kill_program": "broker"},
         (".designs.qpid.browsing:completed_by_all", "self.browsers.values()",
          "(*self.browsers.values(), *getattr(self, \"_gone\", ()))"),
         (".designs.qpid.browsing:detached", "        self._broker.runtime.log(\"backup gone\", backup=name)\n",
          "        self._gone = [*getattr(self, \"_gone\", ()), browser]\n"
          "        self._broker.runtime.log(\"backup gone\", backup=name)\n")),
    _bug("reset-not-sent",
         "a backup that is ahead of a new primary does not receive the reset", "partition,kill", _AHEAD,
         (".designs.qpid.browsing:_differences", "if theirs > agreed:", "if False:"),
         (".designs.qpid.browsing:_pieces", "            events.append([RESET, queue, self.wire(last), kept])\n", "")),
    _bug("dequeues-not-resent", "a returning backup does not receive the dequeues of its absence", "partition,kill",
         _LINK_CUT, (".designs.qpid.browsing:_differences", "if each <= agreed]", "if False]")),
    _bug("catch-up-misses-changes", "a backup does not receive the changes during its catch-up", "kill",
         {**_PRIMARY_KILLED, **_BACKLOG, "catchup_chunk": "1"},
         (".designs.qpid.browsing:tell", "self._hold(browser, told, size)", "self._hold(browser, [], size)")),
    _bug("exclusion-not-noted", "a primary continues without a backup, but the managers do not know", "partition,kill",
         _LINK_CUT, (".designs.qpid.primary:excluded", "self.urls.ever_named(self._name)", "()")),
    edit("bound-first-only", "qpid", "an exchange delivers only to the first matching queue",
         ".engine.destinations:_bound", "        return queues\n", "        return queues[:1]\n"),
    edit("bindings-outlive", "qpid", "a deleted exchange leaves its bindings to its successor of the same name",
         ".designs.qpid.configuration:bindings_of", "arguments[kind] == name]",
         "kind != EXCHANGE and arguments[kind] == name]"),
    edit("level-by-default-only", "qpid", "`qpid.replicate` among a queue's arguments is ignored",
         ".designs.qpid.options:level", 'arguments.get("qpid.replicate")', "None"),
    edit("created-not-compared", "qpid", "a deleted and recreated queue counts as the previous one",
         ".designs.qpid.browsing:_differences", " and told[name][1] == created", ""),
    edit("agreement-by-one", "qpid", "a backup keeps one message more than both sides agree on",
         ".designs.qpid.positions:agreement", "min(first - 1, our_last, their_last)",
         "min(first, our_last, their_last)"),
    edit("group-in-parts", "qpid", "the parts of a group are stored as they arrive",
         ".designs.qpid.backup:_whole", "if not part.more and not self._begun:", "if part.events or not self._begun:"),
    edit("held-before-live", "qpid", "changes during a catch-up are passed on before the existing messages",
         ".designs.qpid.browsing:_catch_up", "        for group in self._pieces(behind):\n",
         "        pieces = list(self._pieces(behind))\n"
         "        while browser.held:\n"
         "            number, events = browser.held.popleft()\n"
         "            browser.held_bytes -= size_of(events)\n"
         "            self._send_group(browser, number, events)\n"
         "        browser.live, browser.caught_up_at = True, number\n"
         "        for group in pieces:\n"),
    edit("eligible-after-loss", "qpid", "a backup that has begun to catch up stays eligible when it loses its primary",
         ".designs.qpid.roles:_lose_primary", "self.was_ready = self._has_all", "self.was_ready = True"),
    edit("permission-once", "qpid", "the manager's permission is checked only at promotion",
         ".designs.qpid.primary:_may_complete",
         "        return self.permission.holds() and self.permission.recorded(self.excluded)\n",
         "        self._asked_once = getattr(self, \"_asked_once\", False) or (\n"
         "            self.permission.holds() and self.permission.recorded(self.excluded))\n"
         "        return self._asked_once\n"),
    edit("window-of-one", "qpid", "a backup gets the next group when it has completed all earlier ones",
         ".designs.qpid.browsing:_window", "browser.under_way >= WINDOW_GROUPS", "browser.under_way >= 1"),
    edit("gives-up-late", "qpid", "a slow backup is excluded after twenty times its limit",
         ".designs.qpid.browsing:give_up", "browser.until <= now",
         "browser.until + 19 * self._options.catchup_timeout <= now"),
    edit("ballots-rarely", "qpid", "a manager without a primary requests votes every twentieth turn",
         ".designs.qpid.manager.coordinator:tick", "            self._ask(sure=False)\n",
         "            self._passed = getattr(self, \"_passed\", 0) + 1\n"
         "            if self._passed % 20 == 0:\n"
         "                self._ask(sure=False)\n"),
    edit("expected-for-long", "qpid", "expected backups are awaited ten times as long",
         ".designs.qpid.primary:tick", "if deadline <= now]",
         "if deadline + 9 * self._options.catchup_timeout <= now]"),
    edit("generations-stay", "qpid", "each message is recorded as the start of a generation",
         ".designs.qpid.positions:note", "if not known or known[-1][0] != generation:",
         "if not known or known[-1] != (generation, position):"),
    edit("later-stays", "qpid", "changes held for a departed backup stay",
         ".designs.qpid.browsing:detached", "        if browser.task is not None:\n",
         "        self._former = [*getattr(self, \"_former\", ()), browser]\n        if browser.task is not None:\n"),
    edit("copies-stay", "qpid", "a primary keeps all that it had copied as a backup",
         ".designs.qpid.backup:forget", "        self._queues.forget()\n", "        pass\n"),
    edit("answer-not-noted", "qpid", "a manager does not record that it has backed a primary",
         ".designs.qpid.manager.manager:_heard", "            self.answers.backed(now)\n", "            pass\n"),
    edit("votes-though-heard", "qpid", "a manager that hears the coordinator votes for another",
         ".designs.qpid.manager.coordinator:asked", ' and known in ("", peer)', ""),
    edit("note-not-handed-on", "qpid",
         "a new primary's manager does not learn which backups earlier primaries excluded",
         ".designs.qpid.manager.services:_promote_if_due",
         "note = max(record.note, Note(term, 0, self._lacking), key=lambda each: each.order)", "note = record.note"),
    edit("granted-since-answered", "qpid", "a manager's grant counts from the arrival of its answer",
         ".designs.qpid.lease_client:_take", "max(self.until, sent + seconds)",
         "max(self.until, self._runtime.now() + seconds)"),
    edit("removed-not-noted", "qpid", "a primary excludes a backup removed from its broker URL, but does not record it",
         ".designs.qpid.primary:excluded", "self.urls.ever_named(self._name)", "self.urls.others(self._name)"),
    edit("leads-without-patience", "qpid", "a promoted broker stops if its manager does not confirm it at once",
         ".designs.qpid.lease_client:lead", ", self._patience = -math.inf, self._runtime.now() + 2 * self._lease",
         " = -math.inf"),
)
