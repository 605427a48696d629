"""The part of a dialogue about transactions and branches."""

from __future__ import annotations

from workloads.reference.dialogue.broker_model import ABORTED, COMMITTED, ModelItem, ModelTransaction
from workloads.reference.dialogue.invalid_commands import MAX_NAME_CHARS, MAX_XID_CHARS, may_end
from workloads.reference.dialogue.speaker import LONG_NAMED, DialogueSpeaker


class TransactionDialogue:
    """The transactions and branches of one client."""

    def __init__(self, client: DialogueSpeaker) -> None:
        self._client, self._model, self._rng = client, client.model, client.rng

    async def begin(self, xid: str = "") -> None:
        """BEGIN a transaction, or a branch if there is an ``xid``."""
        if len(self._model.transactions) >= min(3, self._client.limits.max_transactions):
            return
        self._client.numbers += 1
        name = f"t {self._client.numbers}"
        if self._client.numbers % LONG_NAMED == 0:
            name = name.ljust(MAX_NAME_CHARS, "t")
        await self._client.say("BEGIN", {"transaction": name, **({"x-xid": xid} if xid else {})})
        self._model.begin(name, xid)

    async def begin_branch(self) -> None:
        """Begin a branch, and usually add commands to it at once, so that it is not empty when it is prepared."""
        before = set(self._model.transactions)
        xid = f"{self._client.mine}.x{self._client.numbers}"
        await self.begin(xid if self._client.numbers % LONG_NAMED else xid.ljust(MAX_XID_CHARS, "x"))
        for name in set(self._model.transactions) - before:
            for _ in range(self._rng.randrange(4)):
                await self._client.take()
                await self._add(self._model.transactions[name])

    async def add(self) -> None:
        """Send a message, or acknowledge one, in an open transaction."""
        if self._model.transactions:
            await self._add(self._rng.choice(list(self._model.transactions.values())))

    async def _add(self, transaction: ModelTransaction) -> None:
        if len(transaction.items) >= self._client.limits.max_transaction_items:
            return
        within = {"transaction": transaction.name}
        held = self._client.held()
        if held and self._rng.random() < 0.6:
            one = self._rng.choice(held)
            kind = "NACK" if self._rng.random() < 0.25 else "ACK"
            await self._client.say(kind, {"id": one.ident, **within})
            transaction.items.append(ModelItem(kind, subscription=one.subscription, message=one.message))
            return
        to_queue = self._rng.random() < 0.7 or not self._client.has_branches
        destination = f"/queue/{self._client.queue()}" if to_queue else self._client.topic()
        headers, body = self._client.content()
        item = ModelItem("SEND", destination, headers, body)
        others = sum(each.size for one in self._model.transactions.values() for each in one.items)
        if others + item.size > self._client.limits.max_transaction_bytes:
            return
        await self._client.say("SEND", {"destination": destination, **within, **headers}, body)
        transaction.items.append(item)

    async def end(self) -> None:
        """COMMIT or ABORT an open transaction."""
        if not self._model.transactions:
            return
        transaction = self._rng.choice(list(self._model.transactions.values()))
        may = may_end(self._model, self._client.limits, transaction)
        end = "ABORT" if self._rng.random() < 0.3 or not may else "COMMIT"
        await self._client.say(end, {"transaction": transaction.name})
        (self._model.abort if end == "ABORT" else self._model.commit)(transaction.name)
        kinds = {item.kind for item in transaction.items}
        name = {"ABORT": "abort-of", "COMMIT": ""}[end]
        for kind in kinds:
            self._client.coverage.use(f"{name}-{kind.lower()}s" if name else f"{kind.lower()}-in-transaction")
        if transaction.xid and end == "COMMIT":
            self._client.coverage.use("xa-one-phase")

    async def prepare(self) -> None:
        """PREPARE a branch."""
        branches = [each for each in self._model.transactions.values()
                    if each.xid and may_end(self._model, self._client.limits, each)]
        if not branches:
            return
        one = self._rng.choice(branches)
        await self._client.say("PREPARE", {"transaction": one.name})
        self._model.prepare(one.name)

    async def end_prepared(self) -> None:
        """End a prepared branch, or repeat the end of a branch that has ended."""
        known = [*self._model.prepared, *self._client.remembered()]
        if not known:
            return
        xid = self._rng.choice(known)
        outcome = self._model.outcomes.get(xid)
        if outcome is not None:
            await self._client.say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
            self._client.coverage.use(*(["xa-commit-again"] if outcome == COMMITTED else []))
            return
        await self.end_branch(xid, ABORTED if self._rng.random() < 0.4 else COMMITTED)

    async def end_branch(self, xid: str, outcome: str) -> None:
        """End a prepared branch with this outcome."""
        await self._client.say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
        self._model.end(xid, outcome)
        self._client.ended(xid)
        self._client.coverage.use("xa" if outcome == COMMITTED else "xa-abort-prepared")

    async def end_left_branches(self) -> None:
        """End the branches that former processes of this thread had prepared: those processes are gone, and no other
        process would."""
        theirs = f"{self._client.mine.partition('-')[0]}-"
        answer = await self._client.say("RECOVER", {})
        for xid in answer.get("x-xids", "").split():
            if xid.startswith(theirs):
                await self._client.say("ABORT", {"x-xid": xid})
