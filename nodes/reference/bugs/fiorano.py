"""Bugs of the design ``fiorano`` that can be switched on."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import Bug, edit, edits, pieces

REPOSITORY_FORGOTTEN = "repository-forgotten"
"""A bug of the workload's client, which asks for it by name."""
_BACKLOG = {"producers": "6", "consumers": "1"}
_ACTIVE_KILLED = {"kill_kind": "master", "kill_program": "broker"}
_HALVES = {"fault_network": "all", "partition_kind": "halves", "fault_duration": "4"}
"""The servers do not hear each other; each has its own clients."""
_CUT_OFF = {"fault_network": "all", "partition_kind": "master", "fault_duration": "4"}
"""The active server, with the clients on its side, is cut off from everything else."""


def _bug(name: str, summary: str, nemesis: str, exercise: Mapping[str, str], *several: tuple[str, str, str],
         workload: str = "queue") -> Bug:
    return Bug(name, summary, exercise, "fiorano", workload, nemesis, edits=pieces(*several))


BUGS = (
    _bug("lock-not-rechecked", "a server with the lock never checks whether its lease is still valid", "partition",
         _CUT_OFF,
         (".designs.fiorano.lock:holds", "self.epoch > 0 and self._runtime.now() < self.until", "self.epoch > 0"),
         (".designs.fiorano.active:may_go_alone",
          "return self._lock.holds() and self._lock.epoch > self.above and self.repository.stamp.epoch == "
          "self._lock.epoch", "return self._lock.holds()")),
    _bug("two-holders", "the gateway grants each server a separate lock", "partition", _HALVES,
         (".designs.fiorano.gateway.grants:is_taken",
          "return now < self.holder_until and self.record.holder != name", "return False"),
         (".designs.fiorano.gateway.grants:fits", "return is_up_to_date(self.last, name, take)", "return True"),
         (".designs.fiorano.gateway.grants:renew",
          "        if self.record != (epoch, name):\n            return False\n"
          "        self.holder_until = now + self._lease * MARGIN\n", "")),
    _bug("complete-too-early", "a synchronisation counts as complete before messages were sent", "kill",
         {**_BACKLOG, **_ACTIVE_KILLED},
         (".designs.fiorano.active:_copy", "            self._send(Page(standing.sync, table, rows))\n",
          "            if table in (\"messages\", \"deliveries\"):\n                continue\n"
          "            self._send(Page(standing.sync, table, rows))\n")),
    _bug("receipt-before-standby", "a command is confirmed before the passive server has it on disk", "partition,kill",
         {"partition_kind": "link", **_ACTIVE_KILLED},
         (".designs.fiorano.active:safe",
          "        standing = self.standing\n        if standing is not None and standing.complete:\n"
          "            return standing.stored\n        if self.may_go_alone():\n"
          "            return self.repository.stamp.counter\n        return -1\n",
          "        return self.repository.stamp.counter\n")),
    _bug("acl-not-replicated", "principals, rights and administered objects are not replicated", "kill", _ACTIVE_KILLED,
         (".designs.fiorano.active:_tell", "stamp.changed, tables))",
          "stamp.changed, [table for table in tables if table[0] != \"security\"]))"),
         (".designs.fiorano.active:_copy", "            self._send(Page(standing.sync, table, rows))\n",
          "            if table == \"security\":\n                continue\n"
          "            self._send(Page(standing.sync, table, rows))\n"), workload="security"),
    _bug("older-repository-wins", "when both servers wait, the older repository is chosen",
         "partition,kill", {"max_down": "3", "kill_kind": "random"},
         (".designs.fiorano.pair:_facts",
          "            facts[NEWER] = is_newer(mine, other, primary, options.stamps)\n"
          "            facts[OLDER] = is_newer(other, mine, not primary, options.stamps)\n",
          "            facts[OLDER] = is_newer(mine, other, primary, options.stamps)\n"
          "            facts[NEWER] = is_newer(other, mine, not primary, options.stamps)\n")),
    _bug("passive-serves", "the passive server admits clients", "pause", {},
         (".designs.fiorano.active:may_go_alone", "if not self._fencing:", "if True:"),
         (".designs.fiorano.pair:_entered", "if line.to in SERVING and", "if line.to in (*SERVING, PASSIVE) and"),
         (".designs.fiorano.pair:_entered", "line.to not in SERVING", "line.to not in (*SERVING, PASSIVE)")),
    _bug("stale-standby-serves",
         "the gateway does not check whether another server has served since a repository was up to date",
         "partition,kill", {
             "fault_network": "channel", "kill_kind": "master",
             "schedule": "partition:halves:3-9:1 kill:master:6-8.5:1 partition:halves:11-17:1 kill:master:14-16.5:1",
         },
         (".designs.fiorano.gateway.grants:fits", "return is_up_to_date(self.last, name, take)", "return True")),
    _bug("database-not-loaded", "a server becomes active without loading the shared database", "kill",
         {"mode": "shared", **_ACTIVE_KILLED},
         (".designs.fiorano.shared:_activate", "            if self._kept == epoch == self.store.epoch:\n",
          "            if epoch:\n                await self.store.go_on(epoch)\n"
          "            elif self._kept == epoch == self.store.epoch:\n")),
    Bug(REPOSITORY_FORGOTTEN, "a client's local repository forgets a message when it is sent", {}, "fiorano",
        "offline-send", "kill", client=True),
    edit("grants-of-group", "fiorano", "a right to one object also covers objects with the same prefix",
         ".engine.security:covers", "if granted == asked:", "if asked.startswith(granted):"),
    edit("passcode-of-former", "fiorano", "the former passcode stays valid",
         ".engine.security:_change_passcode",
         "        self._remove(PRINCIPAL, name)\n        self._add_principal(name, said)\n", ""),
    edit("epoch-not-noted", "fiorano", "a requested epoch is not written down",
         ".designs.fiorano.lock:_proposal", "            self._note(self._asked)\n", ""),
    edit("release-trusted", "fiorano", "a lock that is being released counts as held until the answer",
         ".designs.fiorano.lock:_talk", "self.until = -math.inf", "pass"),
    edit("settled-while-asked", "fiorano", "a requested epoch that may yet be granted counts as never used",
         ".designs.fiorano.lock:settled", "not self._outstanding and ", ""),
    edits("page-missing", "fiorano", "a synchronisation is complete although pages after a change were lost",
          (".designs.fiorano.standby:_take", "            self._tables.stage()\n",
           "            self._tables.stage()\n            self._begun_at = message.counter\n"),
          (".designs.fiorano.standby:_take",
           "            self._tables.write(message.table, message.rows, (), staged=True)\n",
           "            if stamp.counter == self._begun_at:\n"
           "                self._tables.write(message.table, message.rows, (), staged=True)\n")),
    edit("alone-unshared", "fiorano", "an active server continues alone before its epoch is in its repository",
         ".designs.fiorano.active:may_go_alone", " and self.repository.stamp.epoch == self._lock.epoch", ""),
    edit("commit-after-loss", "fiorano", "a change in transit to the database is confirmed although the lock was lost",
         ".designs.fiorano.shared:_let_go", "        self.waiting.clear()\n",
         "        while self.waiting:\n            self._broker.release(self.waiting.popleft()[1])\n"),
    edit("asks-each-lease", "fiorano", "an unreachable gateway is retried after ten leases",
         ".designs.fiorano.lock:_talk_forever", "asyncio.sleep(lease / _RENEWALS_PER_LEASE)",
         "asyncio.sleep(10 * lease)"),
    edit("renews-late", "fiorano", "a lease is renewed shortly before it expires",
         ".designs.fiorano.lock:_talk", "within(lease / _RENEWALS_PER_LEASE)", "within(0.95 * lease)"),
    edit("hello-late", "fiorano", "servers exchange their states only at the next change",
         ".designs.fiorano.server:link_up", "        self.greet()\n", ""),
    edit("staged-stays", "fiorano", "pages of an aborted synchronisation stay in the database",
         ".designs.fiorano.tables:drop_staged", "        for name in COLUMNS:\n", "        for name in ():\n"),
    edit("untold-stays", "fiorano", "changes that the standby has stored are kept for sending",
         ".designs.fiorano.active:stored", "        standing.moved.set()\n",
         "        standing.moved.set()\n"
         "        self._untold = [*getattr(self, \"_untold\", ()), message]\n"),
    edit("wide-pattern-covered", "fiorano", "a right to topics of one level covers all levels below",
         ".engine.security:covers", " and (not topic.endswith(\">\") or pattern.endswith(\">\"))", ""),
    edit("revoked-consumer-stays", "fiorano", "a consumer whose right was withdrawn keeps consuming",
         ".engine.security:_revoke", 'Outcome(reduced=_named(said, "login", _LOGIN))', "Outcome(reduced=login)"),
    edit("security-page-overlaps", "fiorano", "each page of a list begins with the last entry of the previous page",
         ".engine.security:_list", "if place <= said", "if place < said"),
    edit("standby-names-itself", "fiorano", "a server that does not serve names itself as the serving one",
         ".designs.fiorano.design:admission", "client_addresses.get(self.options.peer)",
         "client_addresses.get(self._name)"),
    edit("shared-epochs-forgotten", "fiorano", "a server that stops serving forgets which epochs its standby has",
         ".designs.fiorano.pair:_entered", "            self._above = self._shared_epoch()\n", ""),
    edit("met-forgotten", "fiorano", "a server that waits again counts as freshly started",
         ".designs.fiorano.pair:_entered", "self._met or line.to != WAITING", "line.to != WAITING"),
    edit("own-lock-awaited", "fiorano", "the lock's holder waits for its end to get a later epoch",
         ".designs.fiorano.gateway.grants:is_taken", " and self.record.holder != name", ""),
    edit("lease-from-answer", "fiorano", "a lease of the lock runs from the arrival of the answer",
         ".designs.fiorano.lock:_granted", "sent + self._options.lease", "self._runtime.now() + self._options.lease"),
    edit("asked-at-next-turn", "fiorano", "a request for the lock is sent at the next turn",
         ".designs.fiorano.lock:want", "            self._wake.set()\n", ""),
    edit("loss-untold", "fiorano", "a request to the shared database does not learn that the connection is lost",
         ".storage.client:_lose", "waiting.set_exception(ConnectionAbortedError(reason))", "continue"),
    edit("adopted-unreleased", "fiorano",
         "waiting changes are not confirmed when a server gets a later epoch of the lock",
         ".designs.fiorano.active:adopt_epoch", "        self.release()\n", ""),
    edit("adopted-untold", "fiorano", "the standby does not learn of a later epoch of the lock",
         ".designs.fiorano.active:adopt_epoch", "            if self.shares:\n                self._tell([])\n", ""),
)
