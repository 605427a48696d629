"""Workload ``security``: rights, principals and administered objects, changed by some clients and tried by others.

Each right (of a principal to produce to a queue, or to consume from it), each unused principal, and each administered
object is an object that exists or does not. A right is checked by trying it: the principal logs in and sends a message,
or subscribes, and the broker allows or refuses it. So a right that was granted or revoked must apply to all later
commands, under any later primary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nodes.reference.engine.topics import SECURITY
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.operation import OK, Op
from workloads.draws import SECURITY as DRAWS
from workloads.options import CLIENT_HEARTBEAT, CLIENT_ORDER, in_order
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.stomp_client import StompCluster
from workloads.reference.subscriptions import (
    CREATE,
    DESTROY,
    DONE,
    FOUND_SO,
    LOOK,
    ManagedConnection,
    SubscriptionsWorkload,
)

GRANT, REVOKE = "grant", "revoke"
RIGHT, PRINCIPAL, OBJECT = "right", "principal", "object"
PRODUCE, CONSUME = "produce", "consume"
DENIED = "access denied"
_SETTLED = {GRANT: "granted-already", REVOKE: "not-granted"}


@dataclass(frozen=True)
class Rules:
    """The objects behind a test's keys: rights first, then loose principals, then administered objects."""

    principals: int
    queues: int
    loose: int
    things: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Rules:
        """Return the rules that a test's options define."""
        return cls(*(int(options[name]) for name in ("principals", "queues", "loose_principals", "objects")))

    @property
    def rights(self) -> int:
        """The number of rights: two for each principal and queue."""
        return self.principals * self.queues * 2

    @property
    def count(self) -> int:
        """The number of objects."""
        return self.rights + self.loose + self.things

    def kind(self, key: int) -> str:
        """Return the kind of a key's object."""
        if key < self.rights:
            return RIGHT
        return PRINCIPAL if key < self.rights + self.loose else OBJECT

    def right(self, key: int) -> tuple[str, str, str]:
        """Return a right: the principal, the action and the queue."""
        principal, rest = divmod(key, self.queues * 2)
        # Each name is a prefix of the next: a right to one queue must not apply to another.
        return f"p{principal}", (PRODUCE, CONSUME)[rest % 2], f"/queue/s{'x' * (rest // 2)}"

    def name(self, key: int) -> str:
        """Return a readable name of a key's object."""
        kind = self.kind(key)
        return f"{kind} {' '.join(self.right(key)) if kind == RIGHT else self.ident(key)}"

    def ident(self, key: int) -> str:
        """Return the name of a loose principal or an administered object."""
        return f"loose{key - self.rights}" if self.kind(key) == PRINCIPAL else f"object{key - self.rights - self.loose}"

    def changes(self, key: int) -> tuple[str, str]:
        """Return the operations that create and delete the object."""
        return (GRANT, REVOKE) if self.kind(key) == RIGHT else (CREATE, DESTROY)

    def request(self, function: str, key: int) -> tuple[str, dict[str, str]]:
        """Return the request that carries out an operation, and its body; for a right, only the requests that change
        it."""
        kind = self.kind(key)
        if kind == RIGHT:
            login, right, destination = self.right(key)
            return function, {"login": login, "right": right, "destination": destination}
        name = self.ident(key)
        if kind == PRINCIPAL:
            if function == LOOK:
                return "list", {"kind": PRINCIPAL, "name": name}
            passcode = {"passcode": passcode_of(name)} if function == CREATE else {}
            return f"{'create' if function == CREATE else 'delete'}-principal", {"login": name, **passcode}
        if function == LOOK:
            return "look-up", {"name": name}
        return f"{'create' if function == CREATE else 'delete'}-object", {"name": name}

    def settled(self, function: str, key: int) -> str:
        """Return the error code for an object that is already in the requested state."""
        kind = self.kind(key)
        return _SETTLED.get(function) or (f"{kind}-exists" if function == CREATE else f"no-such-{kind}")


def passcode_of(login: str) -> str:
    """Return a principal's passcode."""
    return f"pass-{login}"


class SecurityClient(ManagedConnection):
    """An administrator's connection to the serving broker, and one for each principal whose rights are tried."""

    destination = SECURITY

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._rules = Rules.of(cluster.test.options)
        self._trials: dict[str, StompConnection] = {}
        self._sent: dict[str, str] = {}
        """Login -> the destination of its SEND in an open transaction; the commit shows whether the right still
        exists."""
        self._tried = 0

    async def open(self) -> None:
        """Connect, and make sure that the principals exist whose rights are changed.

        Raises:
            ConnectionBroken: no broker accepted the client, or none could report whether they exist.
        """
        await self._connection.open(self.open_timeout)
        for number in range(self._rules.principals):
            login = f"p{number}"
            answer = await self._ask("create-principal", {"login": login, "passcode": passcode_of(login)})
            if answer.get("x-error", "principal-exists") != "principal-exists":
                raise ConnectionBroken(f"principal {login} can't be created: {answer['x-error']}")

    async def close(self) -> None:
        """Disconnect."""
        for trial in self._trials.values():
            await trial.close()
        await super().close()

    async def invoke(self, op: Op) -> Op:
        """Carry out ``grant``, ``revoke``, ``create``, ``destroy`` or ``look``."""
        key = op.key or 0
        if op.f == LOOK and self._rules.kind(key) == RIGHT:
            done = await self._try(op, *self._rules.right(key))
            self.unserved = done.type != OK
            return done
        request, body = self._rules.request(op.f, key)
        return await self._carry_out(op, request, body, partial(self._outcome, op, key))

    def _outcome(self, op: Op, key: int, answer: Mapping[str, str]) -> Op:
        error = answer.get("x-error")
        if op.f == LOOK:
            if self._rules.kind(key) == PRINCIPAL and error is None:
                return op.ok(int(bool(json.loads(answer["x-answer"]))))
            return op.ok(FOUND_SO if error else DONE) if error in (None, "no-such-object") else op.fail(str(error))
        if error in (None, self._rules.settled(op.f, key)):
            return op.ok(DONE if error is None else FOUND_SO)
        return op.fail(str(error))

    # Trying a right.

    async def _try(self, op: Op, login: str, right: str, destination: str) -> Op:
        """Try whether a principal may use a right. A failed trial ends as *fail* rather than unknown, since it changed
        nothing."""
        try:
            trial = await self._trial(login)
            if right == PRODUCE:
                await self._produce(trial, login, destination)
            else:
                self._tried += 1
                identity = {"id": str(self._tried)}
                about = {"destination": destination, "ack": "client-individual", "x-prefetch": "1"}
                await trial.request("SUBSCRIBE", identity | about, b"", self.op_timeout)
                await self._leave(trial, identity)
            done = op.ok(DONE)
        except Rejected as error:
            self._sent.pop(login, None)
            denied = str(error).startswith(DENIED)
            done = op.ok(FOUND_SO) if denied else op.fail(f"refused: {error}")
        except (NotSent, TimeoutError, ConnectionBroken) as error:
            await self._drop(login)
            done = op.fail(f"could not be tried: {error or 'no answer in time'}")
        return done._replace(node=self.node_of(self._trials.get(login)))

    async def _produce(self, trial: StompConnection, login: str, destination: str) -> None:
        """SEND, sometimes in a transaction, which the next trial of that right commits: the commit needs the right
        again."""
        headers, transaction = {"destination": destination}, {"transaction": "tried"}
        if self._sent.get(login) == destination:
            del self._sent[login]
            await trial.request("COMMIT", transaction, b"", self.op_timeout)
        elif login not in self._sent and self._tried % 2:
            await trial.request("BEGIN", transaction, b"", self.op_timeout)
            await trial.request("SEND", headers | transaction, b"tried", self.op_timeout)
            self._sent[login] = destination
        else:
            await trial.request("SEND", headers, b"tried", self.op_timeout)
        self._tried += 1

    async def _leave(self, trial: StompConnection, identity: dict[str, str]) -> None:
        """End a subscription that was tried; the outcome has nothing to do with the right."""
        try:
            await trial.request("UNSUBSCRIBE", identity, b"", self.op_timeout)
        except (NotSent, Rejected, TimeoutError, ConnectionBroken):
            await trial.abort()
        trial.messages.clear()

    async def _trial(self, login: str) -> StompConnection:
        trial = self._trials.get(login)
        if trial is None or not trial.connected:
            await self._drop(login)
            first = in_order(self.addresses, self.place, self.options)
            trial = StompConnection(first, replace(self.settings, login=login, passcode=passcode_of(login)))
            await trial.open(self.open_timeout)
            self._trials[login] = trial
        return trial

    async def _drop(self, login: str) -> None:
        self._sent.pop(login, None)
        trial = self._trials.pop(login, None)
        if trial is not None:
            await trial.abort()


class SecurityWorkload(SubscriptionsWorkload):
    """Administrators that change the rules, and principals that try them; at the end every rule is tried once more."""

    name = "security"
    needs = ("security",)
    draws = DRAWS
    options = (
        Option("changers", 3, "threads that grant, revoke, create and delete", load=True),
        Option("lookers", 4, "threads that test rights, and look up principals and objects", load=True),
        Option("principals", 2, "principals with rights that change", load=True),
        Option("queues", 2, "queues with rights to send and to take", load=True),
        Option("loose_principals", 2, "principals that are created and deleted", load=True),
        Option("objects", 2, "administered objects that are created and deleted", load=True),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CLIENT_ORDER,
        Option("drain_limit", 60.0, "seconds that the last queries may take in all"),
        Option("min_ok", 20, "confirmed changes, and queries, below which the verdict is unknown"),
    )
    guarantees = ("metadata",)
    positive = ("changers", "lookers", "principals", "queues")
    countable = ("loose_principals", "objects")

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand brokers with principals and rights."""
        return Demands(security=True)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the broker nearest to its host first."""
        return SecurityClient(cluster, host, thread)

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> Rules:
        """Return the objects behind the keys."""
        return Rules.of(options)
