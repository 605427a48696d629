"""Bugs of the design ``icestorm`` that can be switched on."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import ALL_DOWN, SURFACE, Bug, edit, edits, pieces

_TELLING = 'self._peers.ask_all(members, "update", group, epoch, list(stamp), list(change))'
"""A change goes to the slaves."""


def _tested(name: str, summary: str, *several: tuple[str, str, str], workload: str = "subscriptions",
            exercise: Mapping[str, str] | None = None, nodes: int | None = None, nemesis: str = Bug.nemesis) -> Bug:
    """Describe a bug that a test of its own exercises."""
    return Bug(name, summary, exercise or {}, "icestorm", workload, nemesis, nodes, edits=pieces(*several))


BUGS = (
    _tested("link-cost-ignored", "events pass links whose cost is below theirs",
            (".designs.icestorm.delivery:publish", "if limit == 0 or cost <= limit)]", ")]"),
            workload="events", exercise=SURFACE),
    _tested("minority-confirms", "a group of one replica fewer than a majority replicates",
            (".designs.icestorm.election:needed", "majority(len(self.replicas))", "majority(len(self.replicas)) - 1"),
            nodes=5),
    _tested("stamp-lost-at-start", "a restarted replica forgets the stamp of its database",
            (".designs.icestorm.topics:__init__", "            self.stamp = Stamp(epoch, counter, wall)\n", ""),
            exercise=ALL_DOWN, nemesis="partition,kill"),
    _tested("oldest-database-wins", "the comparison of the databases' stamps is reversed",
            (".designs.icestorm.decisions:most_recent", "return max(", "return min(")),
    _tested("coordinator-stamp-ignored", "the coordinator takes a slave's database even if its own is more recent",
            (".designs.icestorm.election:_agree", "        stamps[self.name] = self._database.stamp\n", "")),
    _tested("stale-coordinator-stays", "a coordinator never checks whether it still has its group",
            (".designs.icestorm.replication:_confirm", "        members = list(election.up)\n",
             "        return\n        members = list(election.up)\n"),
            (".designs.icestorm.election:_check", "if self.up and self._options.step_down == CHECKED:", "if False:"),
            exercise={"fault_duration": "4", "changers": "1"}, nemesis="partition"),
    _tested("change-before-slaves", "a change is confirmed before any slave has it",
            (".designs.icestorm.replication:change", f"            answers = await {_TELLING}\n",
             f"            self._runtime.spawn({_TELLING}, \"late update\")\n"
             "            return\n"
             "            answers = {}\n"),
            exercise={"partition_kind": "master", "fault_duration": "3"}, nemesis="partition"),
    _tested("failed-event-last", "a failed delivery is retried behind later events",
            (".designs.icestorm.delivery:_take_back", "extendleft(reversed(failed))", "extend(failed)"),
            workload="events"),
    _tested("offline-events-discarded", "events for an unreachable subscriber are discarded",
            (".designs.icestorm.delivery:_take_back", "if self._options.offline_events == DISCARDED:", "if True:"),
            workload="events"),
    _tested("retries-ignored", "a subscriber is removed at the first failed delivery, regardless of its QoS",
            (".designs.icestorm.delivery:_run", "if 0 <= self.subscriber.retry_count < self._attempts:", "if True:"),
            workload="events"),
    _tested("invitation-twice", "a replica accepts a second invitation and also stays in the first group",
            (".designs.icestorm.election:are_you_coordinator", "return self.leads and self.state in (INACTIVE, NORMAL)",
             "return self.state in (ELECTION, REORGANIZATION) or self.leads"),
            (".designs.icestorm.election:invited", "busy = self.state in (ELECTION, REORGANIZATION)", "busy = False"),
            (".designs.icestorm.election:invited", "        former = ",
             "        self._joined = {**getattr(self, \"_joined\", {}), group: inviter}\n        former = "),
            (".designs.icestorm.election:_reorganizing", "        return self.state",
             "        if getattr(self, \"_joined\", {}).get(group) == peer:\n"
             "            return True\n"
             "        return self.state"),
            nodes=5, nemesis="partition,packets", exercise={"election_timeout": "0.3"}),
    _tested("max-kept", "`max` survives a restart, so a start of all replicas does not need all",
            (".designs.icestorm.election:start", '        self.recover("start")\n',
             "        self.max_seen = len(self.replicas) if self._database.promised else 0\n"
             '        self.recover("start")\n'),
            exercise=ALL_DOWN),
    _tested("full-start-skipped", "a majority is enough, even after a stop of all replicas",
            (".designs.icestorm.election:_large_enough", "self._max_among_us()", "len(self.replicas)"),
            exercise=ALL_DOWN),
    _tested("links-left-behind", "a database is transferred without its links",
            (".designs.icestorm.topics:dump", "self.topics[name].encode()",
             "ReplicatedTopic(name, self.topics[name].subscribers).encode()")),
    _tested("transfer-skipped", "the members of a new group keep their databases, even if another is more recent",
            (".designs.icestorm.election:_agree", "None if stamps[name] == stamps[best] else dump", "None")),
    edit("cost-not-looked-at", "icestorm", "events pass links regardless of cost",
         ".designs.icestorm.delivery:publish", "int(headers.get(COST, \"0\"))", "0"),
    edit("unlink-one-way", "icestorm", "UNLINK leaves the link if the topic has another one",
         ".designs.icestorm.topics:_change", "            del topic.links[change[2]]\n",
         "            if len(topic.links) == 1:\n                del topic.links[change[2]]\n"),
    edits("destroyed-subscribers", "icestorm", "a recreated topic has its predecessor's subscribers",
          (".designs.icestorm.topics:_change", "            self.topics[name] = ReplicatedTopic(name)\n",
           "            self.topics[name] = ReplicatedTopic(name)\n"
           "            former = getattr(self, \"_former\", {}).get(name)\n"
           "            if former is not None:\n"
           "                self.topics[name].subscribers.update(former)\n"),
          (".designs.icestorm.topics:_change", "            del self.topics[name]\n",
           "            self._former = {**getattr(self, \"_former\", {}),\n"
           "                            name: dict(self.topics[name].subscribers)}\n"
           "            del self.topics[name]\n")),
    edit("promise-twice", "icestorm", "an epoch is promised to two coordinators",
         ".designs.icestorm.election:asked_to_promise", "epoch <= self._database.promised",
         "epoch < self._database.promised"),
    edit("installs-other-epoch", "icestorm", "a database of another epoch than the promised one is accepted",
         ".designs.icestorm.election:told_to_install", " or epoch != self._database.promised", ""),
    edit("normal-below-majority", "icestorm", "a coordinator that loses its majority stays normal until its next check",
         ".designs.icestorm.election:drop", "1 + len(self.up) < self.needed", "1 + len(self.up) < 1"),
    edit("members-not-invited", "icestorm",
         "an invited coordinator does not forward the invitation to its members",
         ".designs.icestorm.election:_accept", "[name for name in former if name != inviter]", "[]"),
    edit("confirms-before-answers", "icestorm", "a change is confirmed when it was sent to a majority",
         ".designs.icestorm.replication:change",
         f"            answers = await {_TELLING}\n",
         f"            self._runtime.spawn({_TELLING}, \"update\")\n"
         "            answers = dict.fromkeys(members, True)\n"),
    edit("update-gap-taken", "icestorm", "an update that does not follow the last one is applied",
         ".designs.icestorm.replication:told_to_update", " or not following", ""),
    edit("merges-lowest-first", "icestorm", "the coordinator of the highest priority waits longest",
         ".designs.icestorm.decisions:merge_delay",
         "timeout * (1 + (highest - ident) / replicas) if highest > ident else 0.0",
         "timeout * (1 + ident / replicas)"),
    edit("looks-rarely", "icestorm", "a coordinator checks its surroundings every ten time-outs",
         ".designs.icestorm.election:_run", "            # A little less",
         "            idle *= 10 if self.leads else 1\n"
         "            # A little less"),
    edit("election-without-end", "icestorm", "an election that does not end is abandoned after twenty time-outs",
         ".designs.icestorm.election:_enter", "+ 2 * self._options.election_timeout",
         "+ 20 * self._options.election_timeout"),
    edit("outboxes-stay", "icestorm", "the events of a departed subscriber stay",
         ".designs.icestorm.delivery:forget_gone", "                del self.outboxes[(topic, ident)]\n", ""),
    edit("flying-stay", "icestorm", "events in flight when a connection broke are kept twice",
         ".designs.icestorm.delivery:_take_back", "        self.in_flight.clear()\n", ""),
    edit("goodbye-unanswered", "icestorm", "DISCONNECT is never confirmed",
         ".designs.icestorm.design:submit", ' and command.args.get("receipt") is None:', ":"),
    edit("waits-for-all-replicas", "icestorm", "an election also waits for replicas that were not invited",
         ".designs.icestorm.election:accepted", "if all(name in self.up for name in self.issued):",
         "if len(self.up) == len(self.replicas) - 1:"),
    edit("dead-link-kept", "icestorm", "the link of a silent peer is kept",
         ".designs.icestorm.peers:ask", '            self._links.cut(peer, reason=f"no answer to {question}")\n', ""),
    edit("refused-update-counts", "icestorm", "a replica that refuses a change counts as having it",
         ".designs.icestorm.replication:change", "if not answers.get(name)])", "if name not in answers])"),
    edit("deliveries-go-on", "icestorm", "a delivery task of a departed subscriber keeps waiting",
         ".designs.icestorm.delivery:stop", "        self.task.cancel()\n", ""),
    edit("first-is-enough", "icestorm", "a coordinator continues after the first accepted invitation",
         ".designs.icestorm.election:accepted",
         "        if all(name in self.up for name in self.issued):\n            self._accepted.set()\n",
         "        self._accepted.set()\n"),
    edit("due-since-before", "icestorm", "a coordinator measures its delay before inviting from an earlier group",
         ".designs.icestorm.election:_may_merge",
         "if self.merge_due is None or self.merge_due[0] != self.group:", "if self.merge_due is None:"),
    edit("newest-of-its-own", "icestorm", "a new epoch need not exceed the members' promises",
         ".designs.icestorm.election:_agree", "max([self._database.promised, *newest.values()])",
         "self._database.promised"),
    edit("slow-is-dead", "icestorm", "a coordinator that waits for a slow slave is considered dead",
         ".designs.icestorm.design:_request", "patient=True, ", ""),
    edit("given-to-all", "icestorm", "members receive the database that they already have",
         ".designs.icestorm.election:_agree", "None if stamps[name] == stamps[best] else dump", "dump"),
    edit("confirms-after-loss", "icestorm",
         "a coordinator confirms a change although most members have just left its group",
         ".designs.icestorm.replication:_confirm",
         "not answers.get(name)])\n        if election.group != group or election.state != NORMAL:\n"
         "            raise Unavailable\n", "not answers.get(name)])\n"),
    edit("brought-not-awaited", "icestorm", "a coordinator does not wait for the replicas that its members bring",
         ".designs.icestorm.election:accepted", "        self.issued.update(self._brought)\n", ""),
)
