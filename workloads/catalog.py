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
    Entry("queue", "producers and competing consumers on queues; unique messages, drained at the end",
          "workloads.queue:QueueWorkload"),
    Entry("consume-last", "messages are sent while faults come and go, and all taken at the end: what of them is lost",
          "workloads.consume_last:ConsumeLastWorkload"),
    Entry("topic", "producers, durable and transient subscribers of topics; what they saw, and in which order",
          "workloads.reference.topic:TopicWorkload"),
    Entry("transaction", "sends to several queues at once, moves from queue to queue; one phase or two (XA)",
          "workloads.reference.transaction:TransactionWorkload"),
    Entry("processing", "a client inside the broker takes, computes, sends: at most once, at least once or exactly "
          "once", "workloads.reference.processing:ProcessingWorkload"),
    Entry("store-and-forward", "producers send to local servers, which pass on to the server of the consumers",
          "workloads.reference.store_and_forward:StoreAndForwardWorkload"),
    Entry("events", "publishers of three kinds, subscribers that any replica delivers to",
          "workloads.events:EventsWorkload"),
    Entry("clustered", "queues spread over several HA servers: sent to one, taken at another",
          "workloads.reference.clustered:ClusteredWorkload"),
    Entry("clustered-topic", "topics spread over several HA servers: published on one, forwarded to all",
          "workloads.reference.clustered:ClusteredTopicWorkload"),
    Entry("configuration", "queues, exchanges and bindings made, removed and looked at by many; linearizable metadata",
          "workloads.reference.configuration:ConfigurationWorkload"),
    Entry("subscriptions", "topics and subscriptions made, ended and looked at by many; linearizable metadata",
          "workloads.reference.subscriptions:SubscriptionsWorkload"),
    Entry("lock", "a message in a queue is a lock: two holders at once, and the update that this loses",
          "workloads.lock:LockWorkload"),
    Entry("lease", "a register is a lock with a time limit and fencing tokens: two holders, lost updates",
          "workloads.lock:LeaseWorkload"),
    Entry("register", "registers on a last-value destination: read, write and compare-and-set; linearizable",
          "workloads.register:RegisterWorkload"),
    Entry("log", "logs with offsets: appended to, read on from a position, read whole at the end, and at each node",
          "workloads.log:LogWorkload"),
    Entry("watch", "keys that are put and watched: events in order, each once, none left out, resumed at any node",
          "workloads.watch:WatchWorkload"),
    Entry("security", "rights, principals and administered objects, changed by some and tried by others; linearizable",
          "workloads.reference.security:SecurityWorkload"),
    Entry("dialogue", "clients that say whatever makes sense about destinations of their own; a model has each answer",
          "workloads.reference.dialogue:DialogueWorkload"),
    Entry("topic-dialogue", "clients that make, link and end topics of their own; a model has each answer",
          "workloads.reference.topic_dialogue:TopicDialogueWorkload"),
    Entry("offline-send", "producers on durable connections, cut off and killed between; what they accepted must "
          "arrive, in order", "workloads.reference.offline_send:OfflineSendWorkload"),
)  # fmt: skip

ALIASES = {"reaction": "processing", "forward": "store-and-forward"}
"""Former names. Using one prints a single warning; they will be removed with the next release."""
