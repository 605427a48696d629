"""The client of the transaction workload: whole transactions as single operations, one phase or two (XA).

An operation's completion reports the outcome of the transaction. Until the client has sent COMMIT (with XA: until it
has decided to commit) the transaction certainly has no effect. Any failure before that ends the operation as ``fail``,
and the connection is abandoned with everything that was begun on it.
"""

from __future__ import annotations

from nodes.stomp import Frame
from stormproof.operation import Op
from workloads.feature_coverage import ABORTS, NACK_TX, SEND_TX, FeatureCoverage
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.consumer import value_of
from workloads.reference.decisions import Decisions, xid_of
from workloads.reference.queue_client import QueueClient
from workloads.reference.stomp_client import REQUEST_ERRORS, StompCluster
from workloads.subscribers import GIVEN_BACK

NONE_PREPARED = "none prepared"
REFUSED_WHEN_PREPARED = "refused when prepared"


def queues_of(mask: int) -> list[int]:
    """Return the queues that a transaction sends to."""
    return [queue for queue in range(mask.bit_length()) if mask >> queue & 1]


class TransactionClient(QueueClient):
    """One process; ``decisions`` is the coordinator's log, shared by all."""

    def __init__(self, cluster: StompCluster, host: str, first: int, decisions: Decisions,
                 coverage: FeatureCoverage | None = None) -> None:
        super().__init__(cluster, host, first, coverage)
        self._decisions = decisions
        self._xa = self.options["transactions"] == "xa"

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``commit``, ``abort``, ``move``, ``finish``, ``recover``, ``rollback``, or an operation of a
        queue's client."""
        if op.f in ("commit", "abort"):
            return await self._send_parts(op)
        if op.f in ("move", "finish"):
            return await self._move(op)
        if op.f in ("recover", "rollback"):
            return await self._recover(op)
        return await super().carry_out(op)

    async def _send_parts(self, op: Op) -> Op:
        try:
            name = await self._begin(op)
            for queue in queues_of(op.key or 0):
                await self.send(queue, op.value, transaction=name)
                await self._linger(0.06)
        except REQUEST_ERRORS as error:
            return await self._give_up(op, error)
        return await self._end(op, name)

    async def _move(self, op: Op) -> Op:
        source = op.key or 0
        await self.subscribe(source)
        message = await (self.await_drained(source) if op.f == "finish" else self.poll())
        if message is None:
            return op.fail("empty")
        if self.coverage is not None:
            self._taker.compare(op, message)
        try:
            if self._will(ABORTS, 0.08):
                await self._move_in_vain(op, message)
                if self._xa:
                    return op.fail(GIVEN_BACK)
            name = await self._begin(op)
            await self.send(source + 1, op.value, transaction=name)
            await self.request("ACK", {"id": message.headers["ack"], "transaction": name})
        except REQUEST_ERRORS as error:
            return await self._give_up(op, error)
        done = await self._end(op, name)
        # The value that was taken is reported whether or not the commit is known.
        return done if done.type == "fail" else done._replace(value=value_of(message))

    def _will(self, feature: str, chance: float) -> bool:
        return self.coverage is not None and self.style.will(feature, chance)

    async def _linger(self, chance: float) -> None:
        if self.coverage is not None:
            await self.style.linger(chance)

    async def _move_in_vain(self, op: Op, message: Frame) -> None:
        """Abort a transaction, with XA after PREPARE, so that the message returns to its queue."""
        name = await self._begin(op) if self._xa else self.style.transaction()
        if not self._xa:
            await self.request("BEGIN", {"transaction": name})
        about = {"destination": self.target((op.key or 0) + 1), "transaction": name}
        await self.request("SEND", about, b"aborted")
        settles = "NACK" if self._will(NACK_TX, 0.3) else "ACK"
        await self.request(settles, {"id": message.headers["ack"], "transaction": name})
        await self._end_in_vain(op, name)

    async def _end_in_vain(self, op: Op, name: str) -> None:
        """ABORT; with XA, abort the branch after PREPARE."""
        assert self.coverage is not None
        if self._xa:
            xid = xid_of(op.value)
            await self.request("PREPARE", {"transaction": name})
            try:
                await self.request("ABORT", {"x-xid": xid})
            except Rejected as error:
                self._note_refusal(op, xid, error)
                raise
            self._decisions.leave(xid)
            self.coverage.use("xa-abort-prepared")
        else:
            await self.request("ABORT", {"transaction": name})
            self.coverage.use("abort-of-move")

    async def _begin(self, op: Op) -> str:
        """Begin the transaction; return the name that its frames carry."""
        name = f"t{op.value[1]}"
        headers = {"transaction": name}
        if self._xa:
            headers["x-xid"] = self._decisions.begin(op.value)
        await self.request("BEGIN", headers)
        return name

    async def _give_up(self, op: Op, error: Exception) -> Op:
        """Abandon the transaction: no COMMIT was sent, and none ever will be; the operation fails."""
        await self.leave()
        if self._xa:
            self._decisions.leave(xid_of(op.value))
        return op.fail(f"not committed: {error or 'no receipt in time'}")

    async def _end(self, op: Op, name: str) -> Op:
        """Commit, or abort if the operation is ``abort``."""
        if op.f == "abort":
            return await self._abort(op, name)
        if self._xa and not self._will(SEND_TX, 0.15):
            return await self._two_phases(op, name)
        if self._xa and self.coverage is not None:
            self._decisions.leave(xid_of(op.value))  # other clients ignore a branch that is not prepared
            self.coverage.use("xa-one-phase")
        try:
            await self.request("COMMIT", {"transaction": name})
        except NotSent as error:
            return await self._give_up(op, error)
        except (ConnectionBroken, TimeoutError) as error:
            return _unconfirmed(op, error)
        return op.ok()

    async def _abort(self, op: Op, name: str) -> Op:
        try:
            if self._xa and self._will(ABORTS, 0.5):
                await self._end_in_vain(op, name)
            else:
                await self.request("ABORT", {"transaction": name})
        except (NotSent, ConnectionBroken, TimeoutError) as error:
            return await self._give_up(op, error)
        if self._xa:
            self._decisions.leave(xid_of(op.value))
        return op.ok()

    async def _two_phases(self, op: Op, name: str) -> Op:
        """Prepare, decide, commit. A client may crash on purpose before or after it has decided."""
        xid, crash = xid_of(op.value), self._crash(op)
        try:
            await self.request("PREPARE", {"transaction": name})
            if crash == "undecided":
                await self.leave()
                return op.info("crashed on purpose, prepared and undecided")
            await self._linger(0.15)
            self._decisions.commit(xid)
            if crash == "decided":
                await self.leave()
                return op.info("crashed on purpose, decided to commit")
        except REQUEST_ERRORS as error:
            return await self._give_up(op, error)
        finally:
            self._decisions.leave(xid)
        try:
            await self.request("COMMIT", {"x-xid": xid})
        except REQUEST_ERRORS as error:  # the decision stands in any case, and the recoverer carries it out
            return _unconfirmed(op, error)
        self._decisions.settled(xid)
        if self.coverage is not None and self._will(ABORTS, 0.2):
            await self._commit_again(op, xid, self.coverage)
        return op.ok()

    async def _commit_again(self, op: Op, xid: str, coverage: FeatureCoverage) -> None:
        """Commit again, as a client does that missed the receipt of COMMIT: it is confirmed again."""
        try:
            await self.request("COMMIT", {"x-xid": xid})
            coverage.use("xa-commit-again")
        except Rejected as error:
            self._note_refusal(op, xid, error)
        except (NotSent, ConnectionBroken, TimeoutError):
            pass  # the first confirmation stands

    def _note_refusal(self, op: Op, xid: str, error: Rejected) -> None:
        """Note that a prepared branch could not be ended, if the error is about the branch."""
        if xid in str(error):
            self.observe(op, op.value, f"{REFUSED_WHEN_PREPARED}: {error}")

    def _crash(self, op: Op) -> str:
        """Return whether and when to crash in this transaction; this depends on the seed and the transaction alone."""
        rng = self.cluster.test.rng(f"crash/{xid_of(op.value)}")
        if op.f == "finish" or rng.random() >= self.options["crash_share"]:
            return ""
        return rng.choice(("undecided", "decided"))

    async def _recover(self, op: Op) -> Op:
        """End one branch whose client is gone: commit it (``recover``) or roll it back."""
        answer = await self.request("RECOVER", {})
        prepared = answer.get("x-xids", "").split()
        commits = op.f == "recover"
        xid = self._decisions.to_commit(prepared) if commits else self._decisions.to_abort(prepared)
        if xid is None:
            return op.fail(NONE_PREPARED if not prepared else f"nothing to {'commit' if commits else 'roll back'}")
        try:
            await self.request("COMMIT" if commits else "ABORT", {"x-xid": xid})
        except Rejected as error:
            known = xid in prepared or not self._decisions.maybe_forgotten(xid)
            self._decisions.settled(xid)
            if known and xid in str(error):  # the error concerns this branch, not the connection
                return op.fail(f"{REFUSED_WHEN_PREPARED}: {error}")
            raise
        self._decisions.settled(xid)
        return op.ok(self._decisions.value(xid))


def _unconfirmed(op: Op, error: Exception) -> Op:
    return op.info(f"commit unconfirmed: {error or 'no receipt in time'}")
