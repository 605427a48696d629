"""Bugs of the design ``qpid`` that can be switched on."""

from __future__ import annotations

from nodes.reference.bugs.bug import edit

BUGS = (
    edit("bound-first-only", "qpid", "an exchange brings a message to the first queue that matches only",
         ".engine.destinations:_bound", "        return queues\n", "        return queues[:1]\n"),
    edit("bindings-outlive", "qpid", "an exchange that is deleted leaves its bindings to the next of its name",
         ".designs.qpid.configuration:bindings_of", "arguments[kind] == name]",
         "kind != EXCHANGE and arguments[kind] == name]"),
    edit("level-by-default-only", "qpid", "`qpid.replicate` among a queue's arguments is not looked at",
         ".designs.qpid.options:level", 'arguments.get("qpid.replicate")', "None"),
    edit("created-not-compared", "qpid", "a queue that was deleted and made again counts as the one before",
         ".designs.qpid.browsing:_differences", " and told[name][1] == created", ""),
    edit("agreement-by-one", "qpid", "a backup is told to keep one message more than both agree on",
         ".designs.qpid.positions:agreement", "min(first - 1, our_last, their_last)",
         "min(first, our_last, their_last)"),
    edit("group-in-parts", "qpid", "parts of a group are stored as they come",
         ".designs.qpid.backup:_whole", "if not part.more and not self._begun:", "if part.events or not self._begun:"),
    edit("held-before-live", "qpid", "what happened during a catch-up is told before what was there",
         ".designs.qpid.browsing:_catch_up", "        for group in self._pieces(behind):\n",
         "        pieces = list(self._pieces(behind))\n"
         "        while browser.held:\n"
         "            number, events = browser.held.popleft()\n"
         "            browser.held_bytes -= size_of(events)\n"
         "            self._send_group(browser, number, events)\n"
         "        browser.live, browser.caught_up_at = True, number\n"
         "        for group in pieces:\n"),
    edit("eligible-after-loss", "qpid", "a backup that had begun to catch up stays eligible when it loses its primary",
         ".designs.qpid.roles:_lose_primary", "self.was_ready = self._has_all", "self.was_ready = True"),
    edit("permission-once", "qpid", "whether the manager lets it go on is asked until it says so once",
         ".designs.qpid.primary:_may_complete",
         "        return self._permission.holds() and self._permission.recorded(self.excluded)\n",
         "        self._asked_once = getattr(self, \"_asked_once\", False) or (\n"
         "            self._permission.holds() and self._permission.recorded(self.excluded))\n"
         "        return self._asked_once\n"),
    edit("window-of-one", "qpid", "a backup is sent the next group when it has completed all before",
         ".designs.qpid.browsing:_window", "browser.under_way >= _WINDOW", "browser.under_way >= 1"),
    edit("gives-up-late", "qpid", "a slow backup is given up after twenty times its time",
         ".designs.qpid.browsing:give_up", "browser.until <= now",
         "browser.until + 19 * self._options.catchup_timeout <= now"),
    edit("ballots-rarely", "qpid", "a manager without a primary asks for votes every twentieth turn",
         ".designs.qpid.manager.coordinator:tick", "            self._ask(sure=False)\n",
         "            self._passed = getattr(self, \"_passed\", 0) + 1\n"
         "            if self._passed % 20 == 0:\n"
         "                self._ask(sure=False)\n"),
    edit("expected-for-long", "qpid", "backups that are expected are awaited ten times as long",
         ".designs.qpid.primary:tick", "if deadline <= now]",
         "if deadline + 9 * self._options.catchup_timeout <= now]"),
    edit("generations-stay", "qpid", "each message is noted as the beginning of a generation",
         ".designs.qpid.positions:note", "if not known or known[-1][0] != generation:",
         "if not known or known[-1] != (generation, position):"),
    edit("later-stays", "qpid", "what is held for a backup that is gone stays",
         ".designs.qpid.browsing:detached", "        if browser.task is not None:\n",
         "        self._former = [*getattr(self, \"_former\", ()), browser]\n        if browser.task is not None:\n"),
    edit("copies-stay", "qpid", "a primary keeps all that it had copied as a backup",
         ".designs.qpid.backup:forget", "        self._queues.forget()\n", "        pass\n"),
    edit("answer-not-noted", "qpid", "a manager does not note that it has backed a primary",
         ".designs.qpid.manager.manager:_heard", "            self._answers.backed(now)\n", "            pass\n"),
    edit("votes-though-heard", "qpid", "a manager that hears the coordinator votes for another",
         ".designs.qpid.manager.coordinator:asked", ' and known in ("", peer)', ""),
    edit("note-not-handed-on", "qpid", "a new primary's manager does not learn whom earlier ones went on without",
         ".designs.qpid.manager.services:_promote_if_due",
         "note = max(record.note, Note(term, 0, self._lacking), key=lambda each: each.order)", "note = record.note"),
    edit("granted-since-answered", "qpid", "what a manager grants counts from when its answer comes",
         ".designs.qpid.lease_client:_take", "max(self._until, sent + seconds)",
         "max(self._until, self._runtime.now() + seconds)"),
    edit("removed-not-noted", "qpid", "a primary goes on without a backup that its broker URL names no more, unnoted",
         ".designs.qpid.primary:excluded", "self._urls.ever_named(self._name)", "self._urls.others(self._name)"),
    edit("leads-without-patience", "qpid", "a broker that is made primary ends itself if not let go on as such at once",
         ".designs.qpid.lease_client:lead", ", self._patience = -math.inf, self._runtime.now() + 2 * self._lease",
         " = -math.inf"),
)
