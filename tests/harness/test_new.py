"""`stormproof new`: what it writes runs at once, and nothing is overwritten."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.starting import USUAL, start
from harness.nightly.plan_file import read_plan
from harness.run import plugins
from harness.run.settings import make_test
from nodes.systems.catalog import SYSTEMS
from stormproof.clients import PROTOCOLS
from stormproof.errors import UsageError
from stormproof.protocol_system import ProtocolSystem

ROOT = Path(__file__).parents[2]
HERE_TOO = {"redis": "redis-server", "mqtt": "mosquitto", "nats": "nats-server"}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    plugins.forget()


@pytest.mark.parametrize("client", [None, *PROTOCOLS.names()])
def test_the_files_load_for_every_protocol(client: str | None, tmp_path: Path) -> None:
    lines = start("my_broker", client, tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["my_broker.py", "my_broker.toml", "test_my_broker.py"]
    assert ("try it: stormproof test" in "\n".join(lines)) is (client in USUAL)
    for file in tmp_path.glob("*.py"):
        style = ["ruff", "check", "--isolated", "--select", "E,F,I", "--line-length", "120"]
        done = subprocess.run([sys.executable, "-m", *style, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    name = plugins.resolve(plugins.SYSTEM, f"{tmp_path / 'my_broker.py'}:MyBroker")
    system = SYSTEMS.load(name)
    assert name == "my_broker"
    if client is not None:
        assert isinstance(system, ProtocolSystem)
        protocol = PROTOCOLS.load(client)
        assert system.port == protocol.port and system.provides == protocol.provides
        assert {option.name for option in system.options} >= {option.name for option in protocol.options}
        assert system.leads_objects() is (client in ("kafka", "kafka-librdkafka", "nats", "redis"))


def test_the_night_is_a_night_of_it(tmp_path: Path) -> None:
    start("mine", "redis", tmp_path)
    plan = read_plan(tmp_path / "mine.toml", "salt")
    assert [cell.nemesis for cell in plan.cells] == ["kill", "pause", "partition:from-clients"] and not plan.left_out


def test_the_night_of_mosquitto_has_no_kill_and_says_why(tmp_path: Path) -> None:
    """Mosquitto writes its sessions after it has confirmed messages: no setting survives every kill."""
    lines = start("mine", "mqtt", tmp_path)
    plan = read_plan(tmp_path / "mine.toml", "salt")
    assert [cell.nemesis for cell in plan.cells] == ["pause", "partition:from-clients"] and not plan.left_out
    assert "a kill loses some" in lines[-1] and f"# {lines[-1]}" in (tmp_path / "mine.toml").read_text()
    assert 'nemesis="pause"' in (tmp_path / "test_mine.py").read_text()


def test_defaults_and_refusals_of_the_protocol_are_those_of_the_system(tmp_path: Path) -> None:
    start("mine", "mqtt", tmp_path)
    name = plugins.resolve(plugins.SYSTEM, f"{tmp_path / 'mine.py'}:Mine")
    for system in (name, "mosquitto"):
        assert settings(system, {})["consumers"] == 1
        assert settings(system, {"shared": 3, "consumers": 3})["consumers"] == 3
        with pytest.raises(UsageError, match="an MQTT session has one connection at a time; add --set shared=3"):
            settings(system, {"consumers": 3})


def settings(system: str, given: dict[str, object]) -> dict[str, object]:
    """The settings of a test of this system, once it has been accepted."""
    test = make_test(system=system, workload="queue", nemesis="none", backend="local", nodes=None, time_limit=10,
                     rate=10, seed=1, settings=given)  # fmt: skip
    return dict(test.options)


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py", "mine.toml"])
def test_nothing_is_overwritten_and_then_nothing_is_written(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(UsageError, match="is not overwritten"):
        start("mine", "redis", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there] and (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize(("name", "client", "why"), [
    ("Mine", None, "the name of a Python module"), ("class", None, "no keyword"), ("../mine", None, "a Python module"),
    ("", None, "a Python module"), ("mine", "amq", "no client 'amq'; did you mean 'amqp'"),
])  # fmt: skip
def test_wrong_words_are_told_in_one_line(name: str, client: str | None, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        start(name, client, tmp_path)
    assert why in str(told.value) and "\n" not in str(told.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("client", sorted(HERE_TOO))
def test_what_is_written_runs_at_once(client: str, tmp_path: Path) -> None:
    """On real nodes of this machine, by its own test of pytest."""
    program = HERE_TOO[client]
    if not shutil.which(program) and not (Path(sys.executable).parent / program).exists():
        pytest.skip(f"{program} is not installed")
    start("mine", client, tmp_path)
    test = tmp_path / "test_mine.py"
    test.write_text(test.read_text().replace("time_limit=10", 'time_limit=10, backend="local"'))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)], check=False,
                          cwd=tmp_path, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
