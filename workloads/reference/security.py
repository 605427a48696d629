"""Workload ``security``: rights, principals and administered objects, changed by some clients and tried by others.

Each right (of a principal to produce to a queue, or to consume from it), each unused principal, and each administered
object is an object that exists or does not. A right is checked by trying it: the principal logs in and sends a message,
or subscribes, and the broker allows or refuses it. So a right that was granted or revoked must apply to all later
commands, under any later primary.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nodes.reference.engine.topics import SECURITY
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.operation import OK, Op
from workloads.draws import SECURITY as DRAWS
from workloads.options import in_order
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.managed_objects import (
    COMMON_OPTIONS,
    CREATE,
    DESTROY,
    DONE,
    FOUND_SO,
    LOOK,
    ManagedConnection,
    ManagedObject,
    ManagedObjectsWorkload,
    Prerequisite,
)
from workloads.reference.stomp_client import StompCluster

GRANT, REVOKE = "grant", "revoke"
PRODUCE, CONSUME = "produce", "consume"
DENIED = "access denied"
_STAYS = 3
"""One of this number of trials to consume keeps its subscription."""


@dataclass(frozen=True)
class ManagedRight(ManagedObject):
    """A right of a principal to produce to a queue, or to consume from it."""

    login: str = ""
    right: str = ""
    destination: str = ""


@dataclass(frozen=True)
class LoosePrincipal(ManagedObject):
    """A principal that is created and deleted."""

    login: str = ""


def rights(options: Mapping[str, Any]) -> list[ManagedRight]:
    """Return the rights of a test: two for each principal and queue."""
    # Each name is a prefix of the next: a right to one queue must not apply to another.
    return [_right(f"p{principal}", right, f"/queue/s{'x' * queue}")
            for principal in range(int(options["principals"])) for queue in range(int(options["queues"]))
            for right in (PRODUCE, CONSUME)]


def security_objects(options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
    """Return the objects of a test: rights first, then loose principals, then administered objects."""
    return (
        *rights(options),
        *(_principal(f"loose{number}") for number in range(int(options["loose_principals"]))),
        *(_administered(f"object{number}") for number in range(int(options["objects"]))),
    )


def _right(login: str, right: str, destination: str) -> ManagedRight:
    body = {"login": login, "right": right, "destination": destination}
    return ManagedRight(f"right {login} {right} {destination}", (GRANT, REVOKE), ("granted-already", "not-granted"),
                        {GRANT: (GRANT, body), REVOKE: (REVOKE, body)},
                        login=login, right=right, destination=destination)


def _principal(login: str) -> LoosePrincipal:
    return LoosePrincipal(f"principal {login}", (CREATE, DESTROY), ("principal-exists", "no-such-principal"),
                         {CREATE: ("create-principal", {"login": login, "passcode": passcode_of(login)}),
                          DESTROY: ("delete-principal", {"login": login}),
                          LOOK: ("list", {"kind": "principal", "name": login})}, found=bool, login=login)


def _administered(name: str) -> ManagedObject:
    return ManagedObject(f"object {name}", (CREATE, DESTROY), ("object-exists", "no-such-object"),
                         {CREATE: ("create-object", {"name": name}), DESTROY: ("delete-object", {"name": name}),
                          LOOK: ("look-up", {"name": name})}, missing="no-such-object")


def passcode_of(login: str) -> str:
    """Return a principal's passcode."""
    return f"pass-{login}"


class SecurityClient(ManagedConnection):
    """An administrator's connection to the serving broker, and one for each principal whose rights are tried; it makes
    sure that these principals exist."""

    destination = SECURITY

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        options = cluster.test.options
        logins = [f"p{number}" for number in range(int(options["principals"]))]
        super().__init__(cluster, host, first, security_objects(options), [
            Prerequisite("create-principal", {"login": login, "passcode": passcode_of(login)}, "principal-exists",
                         f"principal {login} can't be created") for login in logins])
        self._trials: dict[str, StompConnection] = {}
        self._sent: dict[str, str] = {}
        """Login -> the destination of its SEND in an open transaction; the commit shows whether the right still
        exists."""
        self._consumers: dict[str, StompConnection] = {}
        """Login -> a connection that stays: with a subscription, which the broker must end when the right is revoked,
        or of a loose principal, which it must end when that is deleted."""
        self._tried = 0

    async def close(self) -> None:
        """Disconnect."""
        for trial in (*self._trials.values(), *self._consumers.values()):
            await trial.close()
        await super().close()

    async def invoke(self, op: Op) -> Op:
        """Carry out ``grant``, ``revoke``, ``create``, ``destroy`` or ``look``."""
        managed = self._objects[op.key or 0]
        if op.f == LOOK and isinstance(managed, ManagedRight):
            done = await self._try(op, managed.login, managed.right, managed.destination)
            self.unserved = done.type != OK
            return done
        done = await super().invoke(op)
        if (op.f, done.type, done.value) == (LOOK, OK, DONE) and isinstance(managed, LoosePrincipal):
            await self._stay(managed.login)
        return done

    # Trying a right.

    async def _try(self, op: Op, login: str, right: str, destination: str) -> Op:
        """Try whether a principal may use a right. A failed trial ends as *fail* rather than unknown, since it changed
        nothing."""
        try:
            stays = right == CONSUME and self._tried % _STAYS == 0
            trial = await (self._consumer(login) if stays else self._trial(login))
            if right == PRODUCE:
                await self._produce(trial, login, destination)
            else:
                self._tried += 1
                identity = {"id": str(self._tried)}
                about = {"destination": destination, "ack": "client-individual", "x-prefetch": "1"}
                await trial.request("SUBSCRIBE", identity | about, b"", self.op_timeout)
                if not stays:
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

    async def _consumer(self, login: str) -> StompConnection:
        """Connect for a subscription that stays; it replaces the login's earlier one."""
        if (earlier := self._consumers.pop(login, None)) is not None:
            await earlier.abort()
        first = in_order(self.addresses, self.place, self.options)
        found = StompConnection(first, replace(self.settings, login=login, passcode=passcode_of(login)))
        await found.open(self.open_timeout)
        self._consumers[login] = found
        return found

    async def _stay(self, login: str) -> None:
        """Connect as a loose principal, and stay, unless it has been deleted in the meantime."""
        stays = self._consumers.get(login)
        if stays is None or not stays.connected:
            with suppress(ConnectionBroken):
                await self._consumer(login)

    async def _drop(self, login: str) -> None:
        self._sent.pop(login, None)
        trial = self._trials.pop(login, None)
        if trial is not None:
            await trial.abort()


class SecurityWorkload(ManagedObjectsWorkload):
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
        *COMMON_OPTIONS,
    )
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
    def objects(cls, options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
        """Return the objects behind the keys."""
        return security_objects(options)
