"""An engine on its own, one command at a time."""

from __future__ import annotations

import sqlite3
from typing import Any

from nodes.reference.api import Command, Deliver, Effect, Opened, Refused
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits


class Bench:
    """An engine over a database in memory; each command is a transaction of its own."""

    def __init__(self, **limits: Any) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.limits = Limits(**limits)
        self.engine = StoreEngine(self.database, self.limits)

    def restart(self) -> None:
        self.engine = StoreEngine(self.database, self.limits)

    def do(self, kind: str, conn: str = "c", seq: int = 0, **args: Any) -> list[Effect]:
        self.database.execute("BEGIN")
        effects = self.engine.apply(Command(kind, conn, seq, args))
        self.engine.flush()
        self.database.execute("COMMIT")
        return effects

    def open(self, conn: str = "c", reliable: bool = False) -> None:
        assert self.do("open", conn, reliable=reliable, login="guest") == [Opened(conn, 0)]

    def publish(self, body: str, topic: str = "t", conn: str = "c", **args: Any) -> list[Effect]:
        return self.do("send", conn, destination=f"/topic/{topic}", headers={}, body=body.encode(), **args)

    def listen(self, name: str = "s", topic: str = "t", conn: str = "c", ack: str = "client-individual",
               prefetch: int = 64, **args: Any) -> list[Deliver]:
        return deliveries(self.do("subscribe", conn, id=name, destination=f"/topic/{topic}", ack=ack,
                                  prefetch=prefetch, **args))

    def send(self, body: str, conn: str = "c", queue: str = "q", **args: Any) -> list[Deliver]:
        return deliveries(self.do("send", conn, destination=f"/queue/{queue}", headers={}, body=body.encode(),
                                  **args))

    def subscribe(self, name: str = "s", conn: str = "c", ack: str = "client-individual", prefetch: int = 64,
                  queue: str = "q", **args: Any) -> list[Deliver]:
        return deliveries(self.do("subscribe", conn, id=name, destination=f"/queue/{queue}", ack=ack,
                                  prefetch=prefetch, **args))


def deliveries(effects: list[Effect]) -> list[Deliver]:
    assert not [effect for effect in effects if isinstance(effect, Refused)], effects
    return [effect for effect in effects if isinstance(effect, Deliver)]


def bodies(effects: list[Effect] | list[Deliver]) -> list[str]:
    return [effect.body.decode() for effect in effects if isinstance(effect, Deliver)]


def refusal(effects: list[Effect]) -> str:
    refused = [effect for effect in effects if isinstance(effect, Refused)]
    assert len(refused) == 1, effects
    return refused[0].reason
