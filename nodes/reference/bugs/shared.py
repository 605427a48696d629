"""Bugs of the code that all designs share, which can be switched on."""

from __future__ import annotations

import textwrap

from nodes.reference.bugs.bug import Bug, Edit, edit, pieces

_CORE = ("standalone",)
"""The other designs that run the broker's common code alone, for bugs of any design that leaves its messages to the
engine."""
_ALL = ("standalone", "icestorm")
_ALL_DOWN = {"max_down": "3", "kill_kind": "random"}
_SURFACE = {"surface": "true"}


def _at_failover(code: str) -> tuple[Edit, ...]:
    """Have the engine run ``code`` when a client resumes its connection, and when one is closed after a failover."""
    begin_resume = "        effects.append(Opened("
    begin_close = "        for subscription in list(context.subscriptions.values()):\n"
    condition = '        if reason == "failover":\n'
    return pieces(
        (".engine.contexts:_resume", begin_resume, textwrap.indent(code, " " * 8) + begin_resume),
        (".engine.contexts:close", begin_close, condition + textwrap.indent(code, " " * 12) + begin_close))


BUGS = (
    Bug("close-drops-unacked", "unacknowledged messages of a closed connection are discarded",
        also=_CORE, edits=pieces(
            (".engine.destinations:end_subscription", "self.give_back(message)", "self.consume(message)"))),
    Bug("no-duplicate-filter", "a frame that a client repeats after a reconnection is applied twice",
        also=_CORE, edits=pieces(
            (".engine.engine:_apply_to", "if seq <= context.in_seq:", "if seq < 0:"))),
    Bug("filter-lost-at-failover", "a frame that a client repeats on another node is applied twice",
        also=_CORE, edits=pieces(
            (".server.broker:open", "            self.connections.stop_idle_timer(conn)\n",
             '            if not conn.startswith(f"{self.config.node}-"):\n'
             '                args["moved"] = True\n'
             "            self.connections.stop_idle_timer(conn)\n"),
            (".engine.contexts:open", "            self._resume(",
             '            if args.get("moved"):\n'
             '                vars(self).setdefault("unfiltered", set()).add(conn)\n'
             "            self._resume("),
            (".engine.engine:_apply_to", "if seq <= context.in_seq:",
             'if seq <= context.in_seq and context.conn not in vars(self._contexts).get("unfiltered", ()):'))),
    Bug("requeued-twice", "a message returned by a closed connection is put into its queue twice",
        also=_CORE, edits=pieces(
            (".engine.destinations:end_subscription", "            self.give_back(message)\n",
             "            self.give_back(message)\n"
             "            self._state.add_message(queue, *self._state.content(message))\n"))),
    Bug("durable-lost-at-failover", "a failover empties durable subscriptions without a connected client",
        workload="topic", also=_CORE, edits=_at_failover(
            "for queue in list(self._state.durables.values()):\n"
            '    if queue.name.startswith(f"durable:{context.login}:") and not queue.subscriptions:\n'
            "        pattern, name = queue.pattern, queue.name\n"
            "        self._state.remove_topic_queue(queue)\n"
            '        self._state.add_topic_queue("durable", name, pattern)\n')),
    Bug("collocated-contexts-kept", "contexts of a collocated client on a former master are never cleaned up",
        workload="processing", also=_CORE, edits=pieces(
            (".engine.contexts:_clean_up_after", 'conn.startswith(f"{PREFIX}{thread}:")', "False"))),
    Bug("prepared-forgotten", "a new master forgets the messages of prepared transactions",
        workload="processing", exercise={"quality": "exactly-once", "queues": "3"}, nemesis="kill", also=_CORE,
        edits=_at_failover(
            "for owner, branch in self._state.prepared.items():\n"
            "    if owner[0] == context.login:\n"
            "        for item in branch.items:\n"
            "            self._state.tables.items.remove(item.id)\n"
            "        self._state.reserved -= len(branch.items)\n"
            "        branch.items = []\n")),
    Bug("branches-forgotten", "a new master rolls back prepared transactions on its own",
        workload="transaction", exercise={"transactions": "xa", "crash_share": "0.2"}, also=_CORE, edits=_at_failover(
            "for owner, branch in list(self._state.prepared.items()):\n"
            "    if owner[0] == context.login:\n"
            '        self._transactions._end_prepared(branch, "aborted")\n')),
    Bug("state-behind-log", "the applied index is noted on disk, but not the result",
        exercise=_ALL_DOWN, also=_CORE, edits=pieces(
            (".engine.engine:flush",
             "        self.state.flush(self.changes)\n"
             "        self.server_queues.flush(self.changes)\n"
             "        self.clustered.flush(self.changes)\n"
             "        self.security.flush(self.changes)\n"
             "        for records in self._records:\n"
             "            records.write()\n"
             "            records.saved()\n", ""))),
    Bug("receipt-on-arrival", "a message is confirmed on arrival, before it is ordered",
        also=_CORE, edits=pieces(
            (".server.sessions:_command_of", "        return command\n",
             '        if command.kind == "send" and "receipt" in command.args:\n'
             '            self.output.add(frames.receipt(str(command.args["receipt"])))\n'
             "            self.output.flush()\n"
             "        return command\n"))),
    Bug("orphans-never-expire", "connections inherited from the last master never expire",
        also=_CORE, edits=pieces(
            (".server.connections:take_over", "self._host.engine.connections().items()", "()"))),
    Bug("commit-unsynced", "a database commit does not sync the disk",
        nemesis="power", exercise={"power_kind": "all", "settle_timeout": "5", "drain_limit": "10"}, also=_ALL,
        edits=pieces(
            (".engine.engine:__init__", "        self.database = database\n",
             "        self.database = database\n"
             '        database.execute("PRAGMA synchronous=OFF")\n'))),
    Bug("forgotten-when-sent", "a message for another server is forgotten as soon as it is sent",
        workload="store-and-forward", also=_CORE, edits=pieces(
            (".server.networks:_pump", "            connection.bytes += message.size\n",
             "            connection.bytes += message.size\n"
             '            about = {"server": server, "sequence": message.sequence}\n'
             '            self._host.submit(Command("forwarded", "", 0, about))\n'))),
    Bug("reemission-taken", "a message that another server repeats is accepted again",
        workload="store-and-forward", also=_CORE, edits=pieces(
            (".engine.server_queues:awaits", "elif sequence <= peer.received:", "elif sequence < 0:"))),
    Bug("moved-and-kept", "a message moved to another element of its queue also stays here",
        workload="clustered", also=_CORE, edits=pieces(
            (".engine.clustered:_move", "        queue.depth -= 1\n        self._state.remove_message(message)\n",
             "        queue.requeue(message)\n"))),
    Bug("remote-ack-on-arrival", "a delivery from another server is acknowledged there before a client has it",
        workload="store-and-forward", exercise={"consume_at": "own-server"}, also=_CORE, edits=pieces(
            (".engine.proxies:settle", "        self._ask(", "        return\n        self._ask("),
            (".engine.proxies:take", "                self._enqueue(queue, {",
             '                self._proxies._ask(queue, ACK, {"id": about["ack"]})\n'
             "                self._enqueue(queue, {"))),
    Bug("remote-end-untold", "the server of a destination does not learn that a remote consumer has ended",
        workload="store-and-forward", exercise={"consume_at": "own-server"}, also=_CORE, edits=pieces(
            (".engine.proxies:end", "        self._ask(", "        return\n        self._ask("))),
    Bug("transaction-half-applied",
        "a failover empties open transactions, which are then committed with the later frames only",
        workload="transaction", exercise={"writers": "6", "parts": "8"}, also=_CORE, edits=_at_failover(
            "for transaction in list(context.transactions.values()):\n"
            "    self._state.remove_transaction(transaction)\n"
            "    self._state.add_transaction(context, transaction.name, transaction.xid)\n")),
    Bug("cas-unchecked", "a compare-and-set ignores the expected version",
        workload="register", also=_CORE, edits=pieces(
            (".engine.last_values:put", "expected is not None and expected != version", "False"))),
    Bug("replaced-value-kept", "a replaced value stays in its queue, and returns after a restart",
        workload="register", exercise=_ALL_DOWN, nemesis="kill", also=_CORE, edits=pieces(
            (".engine.last_values:put",
             "        for older in held:\n"
             "            queue.fresh.remove(older)\n"
             "            queue.depth -= 1\n"
             "            self.state.remove_message(older)\n"
             "        held.clear()\n", ""),
            (".engine.last_values:_of", ".append(message)", ".insert(0, message)"))),
    Bug("versions-restart", "a restarted broker restarts the versions of values",
        workload="register", exercise=_ALL_DOWN, nemesis="kill", also=_CORE, edits=pieces(
            (".engine.last_values:_of", "        return known\n",
             "            if queue.fresh:\n"
             '                counted_from = vars(self).setdefault("counted_from", {})\n'
             "                counted_from[queue.id] = min(message.sequence for message in queue.fresh) - 1\n"
             "        return known\n"),
            (".engine.last_values:_version", "held[-1].sequence if",
             'held[-1].sequence - vars(self).get("counted_from", {}).get(held[-1].queue.id, 0) if'))),
    Bug("read-on-arrival", "a value is read when the request arrives, before it is ordered",
        workload="register", nemesis="pause", also=_CORE, exercise={
            "connect": "home", "threads": "12", "client_heartbeat": "2", "pause_kind": "master", "fault_duration": "3",
        }, edits=pieces(
            (".server.sessions:_command_of", "        return command\n",
             '        if command.kind == "read":\n'
             '            self._answer(str(command.args["receipt"]), conn, command.seq,\n'
             "                         self._host.engine.value(command.args))\n"
             "            self.output.flush()\n"
             "        return command\n"))),
    Bug("redelivery-uncounted", "a returned message is delivered again as if for the first time",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.destinations:give_back", "        message.redeliveries += 1\n", ""))),
    Bug("window-too-large", "a subscription gets one message more than its window",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.destinations:subscribe", "            prefetch = 0\n",
             "            prefetch = 0\n        else:\n            prefetch += 1\n"))),
    Bug("body-ends-at-nul", "a body read from the store ends at its first NUL",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.state:_read_content", ", row[1]\n", ', row[1].partition(b"\\0")[0]\n'))),
    Bug("client-ack-of-one", "with ack:client an ACK covers only one message, not the earlier ones",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.engine:_settle", "context.covered(message)", "[message]"))),
    Bug("aborted-branch-consumes", "the acknowledgements of a prepared branch remain after its abort",
        workload="transaction", exercise={**_SURFACE, "transactions": "xa"}, also=_CORE, edits=pieces(
            (".engine.transactions:_end_prepared",
             "if outcome == COMMITTED:\n                self._destinations.consume",
             "if True:\n                self._destinations.consume"))),
    Bug("deleted-durable-kept", "a deleted durable subscription is inherited by the next one of its name",
        workload="topic", exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.destinations:_delete_durable", "        self._drop(queue)\n", ""))),
    Bug("acked-twice-commits", "a transaction with an invalid ACK is committed without it",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.transactions:_plan", "            if message is None or message.id in taken:\n",
             "            if message is not None and message.id in taken:\n"
             "                continue\n"
             "            if message is None or message.id in taken:\n"))),
    Bug("nack-consumes", "a NACK acts as an ACK",
        exercise=_SURFACE, also=_CORE, edits=pieces(
            (".engine.destinations:finish", 'if kind == "ack":', "if True:"))),
    edit("abort-settles", "standalone", "an aborted transaction's acknowledgements take effect",
         ".engine.transactions:abort",
         '        self._end(self._transaction(context, command.args["tx"]), ABORTED)\n',
         '        transaction = self._transaction(context, command.args["tx"])\n'
         '        plan = self._plan(context, [item for item in transaction.items if item.kind != "send"])\n'
         "        self._end(transaction, ABORTED)\n"
         "        for item, messages in plan:\n"
         "            self._destinations.finish(item.kind, messages)\n"),
    edit("ack-covers-later", "standalone", "an ACK in mode client also covers later deliveries",
         ".engine.model:covered", "            if out_seq > message.out_seq:\n                break\n", ""),
    edit("given-back-last", "standalone", "a returned message goes to the end of its queue",
         ".engine.model:requeue", "heapq.heappush(self.returned, (message.id, message))", "self.fresh.append(message)"),
    edit("durable-keeps-pattern", "standalone",
         "a durable subscription resumed with another pattern keeps the old one",
         ".engine.destinations:_topic_queue", "elif queue.pattern == pattern:", "elif queue.pattern:"),
    edit("pattern-one-word", "standalone", "`>` matches exactly one more word", ".engine.topics:selecting",
         "matches(queue.pattern, topic)", 'matches(queue.pattern.replace(">", "*"), topic)'),
    edit("recover-tells-all", "standalone", "RECOVER also lists the branches of other logins",
         ".engine.transactions:recover", " if owner == login]", "]"),
    edit("xid-again", "standalone", "a branch may begin under an XID that has ended",
         ".engine.transactions:_check_new", "in self._state.outcomes:", "in ():"),
    edit("outcome-agreed", "standalone", "COMMIT of an aborted branch is confirmed",
         ".engine.transactions:_prepared", "if ended == outcome:", "if ended is not None:"),
    edit("sends-reversed", "standalone", "the messages of a transaction are sent in reverse order",
         ".engine.transactions:commit", "for item, messages in plan:", "for item, messages in reversed(plan):"),
    edit("repeated-header-last", "standalone", "the last of a frame's repeated headers counts",
         "nodes.stomp:_parse_head", "headers.setdefault(name, value)", "headers[name] = value"),
    edit("principal-gone-stays", "standalone", "connections of a deleted principal stay open",
         ".engine.engine:_withdraw", "if gone or not all(", "if not gone and not all("),
    edit("commit-unchecked", "standalone", "COMMIT ignores a withdrawn right",
         ".engine.engine:_demand_sends", "if self.security.enabled else None", "if self.security is None else None"),
    edit("redelivery-not-stored", "standalone", "after a restart messages have a redelivery count of 0",
         ".engine.state:_restore_messages", "message.redeliveries = redeliveries", "message.redeliveries = 0"),
    edit("session-of-former", "standalone", "a superseded session closes the context when it ends",
         ".server.connections:attach", "                older.conn = None\n", ""),
    edit("idle-timer-goes-on", "standalone",
         "a resumed connection is closed when its earlier idle timer expires",
         ".server.broker:open", "            self.connections.stop_idle_timer(conn)\n", ""),
    edit("last-waits-first", "standalone",
         "of two sessions that wait for a connection, the later receives the earlier one's answer",
         ".server.connections:_next_waiting", "waiting.pop(0)", "waiting.pop()"),
    edit("assigned-not-stored", "standalone", "messages taken by a prepared branch are free again after a restart",
         ".engine.state:assign", "        self.tables.deliveries.update(message.id, message)\n", ""),
    edit("note-received-late", "standalone", "one message more than a client has received is consumed",
         ".engine.contexts:note_received", "m.out_seq <= received]", "m.out_seq <= received + 1]"),
    edit("idle-by-parts", "standalone", "each part of the idle time lasts as long as the whole",
         ".server.connections:_start_idle_timer", "self._host.limits.idle_timeout / _IDLE_PARTS",
         "self._host.limits.idle_timeout"),
    edit("turns-queue", "standalone", "a free place in a window is filled only when the next message arrives",
         ".engine.destinations:_take_back",
         "            message.queue.update_room(subscription)\n"
         "        self._touched[message.queue.id] = message.queue\n",
         "            message.queue.update_room(subscription)\n"),
    edit("closed-for-ever", "standalone", "the reasons of all closed connections are remembered",
         ".engine.state:remember_closed", "if len(self.closed) > count:", "if len(self.closed) < 0:"),
    edit("outcomes-for-ever", "standalone", "the outcomes of all branches are remembered",
         ".engine.state:remember_outcome", "if len(self.outcomes) > count:", "if len(self.outcomes) < 0:"),
    edit("waiters-stay", "standalone", "connections without a waiting session stay in the table of waiting sessions",
         ".server.connections:_next_waiting", "            del self.waiting[conn]\n", "            pass\n"),
    edit("shared-stays", "standalone", "the content of a topic's message stays when its last copy is gone",
         ".engine.state:remove_message", "                self.tables.shared.remove(shared.id)\n", ""),
    edit("deliveries-stay", "standalone", "the row of a delivery stays when its message is consumed",
         ".engine.state:remove_message", "        self.tables.deliveries.remove(message.id)\n", ""),
    edit("in-use-by-login", "standalone",
         "a durable subscription in use by another connection of the login can be deleted",
         ".engine.destinations:_delete_durable", "consumer.context is not context",
         "consumer.context.login != context.login"),
    edit("wake-lost", "standalone", "work submitted while effects are delivered waits for the next command",
         ".designs.standalone:_run", "            self._wake.clear()\n            self._commit()\n",
         "            self._commit()\n            self._wake.clear()\n"),
    edit("never-cut-off", "standalone", "a client that received the reason for its end is never disconnected",
         ".server.output_buffer:finish",
         "        self.cut = self._loop.call_later(self._limits.linger, transport.abort)\n", ""),
    edit("error-unnamed", "standalone", "an ERROR about a frame omits the requested receipt",
         ".server.sessions:_handle",
         '                fault.headers = {**fault.headers, "receipt-id": asked}\n', "                pass\n"),
    edit("passcodes-rest", "standalone", "twenty passcodes are hashed in a hundred seconds, and others wait",
         ".server.guard:_count", "if now - self._window >= 1:", "if now - self._window >= 100:"),
    edit("aborted-under-way", "standalone",
         "an aborted transaction still counts towards the size of the next one of its name",
         ".server.inflight:_in_transaction", '("commit", "abort", "prepare")', '("commit", "prepare")'),
)
