"""`stormproof admin qpid`, from the words on the command line to what a real broker does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from qpid_processes import Cluster
from typer.testing import CliRunner

from harness.cli.admin import admin_app
from stormproof.errors import StormproofError


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Cluster]:
    """One node, whose broker is primary."""
    made = Cluster(tmp_path, ["n1"])
    try:
        made.until("primary")
        yield made
    finally:
        made.end()


@pytest.mark.requirement("Q11", part=True)
@pytest.mark.requirement("Q12", part=True)
@pytest.mark.requirement("Q16", part=True)
def test_every_command_from_status_to_shutdown(single: Cluster) -> None:
    def admin(command: str, *words: str) -> str:
        done = CliRunner().invoke(admin_app(complete=True), ["qpid", command, *words, "--server", single.server("n1")])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    def refused(command: str, *words: str) -> str:
        with pytest.raises(StormproofError) as error:
            admin(command, *words)
        assert "\n" not in str(error.value)
        return str(error.value)

    single.send("a", "b")
    assert "n1: primary; store dirty, primary, generation 1" in admin("status")
    assert "n1: propagated to 0 backups" in admin("status")
    assert admin("list").splitlines() == ["queue q"] == admin("list", "--kind", "queue").splitlines()
    assert admin("list", "--kind", "exchange") == ""
    assert admin("best-store").splitlines()[-1] == "best: n1"
    assert "n1 is primary already" in refused("promote")
    for command in ("accept-store", "erase-store", "copy-store"):
        assert refused(command)
    address = single.server("n1").replace("127.0.0.1", "localhost")
    admin("set-client-url", f"n1={address}")
    assert single.statuses()["n1"]["clients"] == {"n1": address}
    assert "n9" in refused("set-client-url", "n9")
    assert admin("set-broker-url", f"n1=127.0.0.1:{single.links['n1']}")
    assert "clean, " in admin("shutdown") and "n1: stopped; store clean" in admin("status")
    assert "n1 is stopped" in refused("promote", "--force", "1")
