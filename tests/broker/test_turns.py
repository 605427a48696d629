"""Large work takes turns: what has its turn is counted, and nobody waits for whom there is room."""

from __future__ import annotations

from nodes.reference.server.budget import Turns, TurnTaker
from nodes.systems.reference.probes.broker import turns_stall


async def test_who_waits_though_there_is_room_is_told() -> None:
    turns = Turns(10)
    assert turns.enter(TurnTaker(), 8) is None and turns.taken == 8
    second, third = turns.enter(TurnTaker(), 9), turns.enter(TurnTaker(), 3)
    assert second is not None and third is not None and not turns_stall(turns)
    turns.leave(8)
    assert turns_stall(turns) and turns.taken == 0, "for some turns of the event loop"
    assert await second
    assert not turns_stall(turns) and turns.taken == 9 and not third.done()
    third.set_result(False)  # it has ended meanwhile
    turns.leave(9)
    assert not turns_stall(turns) and turns.taken == 0
