"""All workloads by name. To add one, add a module to this package and a line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.workload import Workload
from stormproof.registry import Entry, Registry


def _is_workload(found: object) -> TypeGuard[type[Workload]]:
    return isinstance(found, type) and issubclass(found, Workload)


WORKLOADS: Registry[type[Workload]] = Registry(
    "workload",
    _is_workload,
    Entry("queue", "producers and competing consumers of queues; the queues are drained at the end",
          "workloads.queue:QueueWorkload"),
    Entry("consume-last", "producers send during faults; consumers receive everything at the end",
          "workloads.consume_last:ConsumeLastWorkload"),
    Entry("topic", "producers, and durable and transient subscribers of topics; loss, duplicates and order",
          "workloads.reference.topic:TopicWorkload"),
    Entry("transaction", "sends to several queues at once, moves from queue to queue; one phase or two (XA)",
          "workloads.reference.transaction:TransactionWorkload"),
    Entry("processing", "a client inside the broker receives, computes and sends: at most, at least or exactly once",
          "workloads.reference.processing:ProcessingWorkload"),
    Entry("store-and-forward", "producers send to local servers, which forward the messages to the consumers' server",
          "workloads.reference.store_and_forward:StoreAndForwardWorkload"),
    Entry("events", "publishers of three kinds, and subscribers that receive events from any replica",
          "workloads.events:EventsWorkload"),
    Entry("clustered", "queues spread over several HA servers: producers send to one, consumers receive from another",
          "workloads.reference.clustered:ClusteredWorkload"),
    Entry("clustered-topic", "topics spread over several HA servers: a publication on one is forwarded to all",
          "workloads.reference.clustered:ClusteredTopicWorkload"),
    Entry("configuration", "clients create, delete and query queues, exchanges and bindings; linearizable metadata",
          "workloads.reference.configuration:ConfigurationWorkload"),
    Entry("subscriptions", "clients create, delete and query topics and subscriptions; linearizable metadata",
          "workloads.reference.subscriptions:SubscriptionsWorkload"),
    Entry("lock", "a message in a queue serves as a lock: mutual exclusion, lost updates",
          "workloads.lock:LockWorkload"),
    Entry("lease", "a register serves as a lock with a lease and fencing tokens: mutual exclusion, lost updates",
          "workloads.lock:LeaseWorkload"),
    Entry("register", "reads, writes and compare-and-sets of registers on last-value destinations; linearizable",
          "workloads.register:RegisterWorkload"),
    Entry("log", "appends to logs with offsets, reads from a position, and complete reads at the end, at each node",
          "workloads.log:LogWorkload"),
    Entry("watch", "puts and watches of keys: events in order, exactly once, without gaps; watches resume at any node",
          "workloads.watch:WatchWorkload"),
    Entry("security", "changes and tests of rights, principals and administered objects; linearizable",
          "workloads.reference.security:SecurityWorkload"),
    Entry("dialogue", "clients that send random valid commands to private destinations; a model predicts each answer",
          "workloads.reference.dialogue.workload:DialogueWorkload"),
    Entry("topic-dialogue", "clients that create, link and delete private topics; a model predicts each answer",
          "workloads.reference.dialogue.topics:TopicDialogueWorkload"),
    Entry("offline-send", "producers on durable connections, cut off and killed; accepted messages arrive in order",
          "workloads.reference.offline_send:OfflineSendWorkload"),
    Entry("commands", "test commands of the user's, in the containers of a Compose file (Antithesis's test templates)",
          "workloads.commands:CommandsWorkload"),
)  # fmt: skip

ALIASES = {"reaction": "processing", "forward": "store-and-forward"}
"""Former names. Using one prints a single warning; they will be removed with the next release."""
