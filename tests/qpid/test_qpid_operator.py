"""What a person does where brokers and managers can't go on by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from qpid_sim import Group, simulate


@pytest.mark.requirement("Q12", part=True)
def test_a_persons_word_lasts_until_a_primary_has_taken_the_broker(tmp_path: Path) -> None:
    """Managers promote whom a person vouches for whatever notes say: only as long as that is what the person saw."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.kill()
        await group.start()
        for node in group.nodes:
            await group.until(node, "connecting")
            assert not (await group.ask(node, "status"))["forced"]
        for node in ("n1", "n2"):
            assert (await group.ask(node, "accept-store"))["ok"]
            assert (await group.ask(node, "status"))["forced"]
        assert (await group.ask("n1", "promote"))["ok"]
        await group.all_ready("n1")
        await group.kill("n1")
        await group.until("n2", "connecting")
        status = await group.ask("n2", "status")
        assert status["eligible"] and not status["forced"]

    simulate(scenario, tmp_path)
