"""From what a user typed to a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from harness.analysis.guarantees import exemptions_of
from harness.cli.app import app
from harness.cli.config_file import Key, read_config
from harness.cli.configured import keys_of
from harness.run.describe import changed, command_line
from harness.run.settings import convert_options, make_test, parse_assignments
from stormproof.contracts.option import Option
from stormproof.errors import UsageError
from stormproof.test import Test
from workloads.catalog import WORKLOADS

PLAIN: dict[str, Any] = {
    "system": "joram", "workload": "queue", "nemesis": "none", "backend": "local",
    "nodes": 3, "time_limit": 5.0, "rate": 10.0, "seed": 1, "settings": {},
}  # fmt: skip


def keys_of_test() -> dict[str, Key]:
    """What a configuration file of ``stormproof test`` may have."""
    return keys_of(typer.main.get_command(app).commands["test"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"system": "jorum"}, "did you mean 'joram'"),
        ({"workload": "queues"}, "did you mean 'queue'"),
        ({"nemesis": "partitoin"}, "did you mean 'partition'"),
        ({"nemesis": "kill,kill"}, "named twice"),
        ({"nodes": 1}, "takes 2 to 64"),
        ({"nodes": 1000}, "takes 2 to 64"),
        ({"settings": {"spares": 2}}, "of 3 nodes, 2 at least must be replicas from the beginning"),
        ({"workload": "store-and-forward", "nodes": 4, "settings": {"spares": 1}}, "of 2 nodes, 2 at least"),
        ({"nemesis": "membership"}, "keep some with --set spares=1"),
        ({"nemesis": "membership", "system": "icestorm", "workload": "subscriptions"}, "icestorm takes no replicas"),
        ({"time_limit": 0}, "between 1 and 86400"),
        ({"rate": 0}, "more than 0"),
        ({"rate": float("nan")}, "more than 0"),
        ({"settings": {"partitons": "x"}}, "did you mean 'partitions'"),
        ({"settings": {"partitions": "all"}}, "one of primary-partition, unspecified"),
        ({"settings": {"detection_timeout": "soon"}}, "not a number"),
        ({"settings": {"detection_timeout": "nan"}}, "between 0 and"),
        ({"settings": {"producers": "-1"}}, "between 0 and"),
        ({"settings": {"producers": 2.7}}, "not an integer"),
        ({"settings": {"producers": True}}, "not an integer"),
        ({"settings": {"both_sides": "perhaps"}}, "not a boolean"),
    ],
)
def test_mistakes_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_test(**{**PLAIN, **changed})


def test_a_setting_of_the_other_library_is_refused() -> None:
    pytest.importorskip("aiokafka")
    pytest.importorskip("confluent_kafka")
    kafka = {**PLAIN, "system": "kafka", "workload": "log"}
    for settings in ({"idempotence": "false"}, {"idempotence": "true", "library": "librdkafka"}):
        make_test(**{**kafka, "settings": settings})
    with pytest.raises(UsageError, match=r"^--set socket_timeout_ms=50 needs --set library=librdkafka or java$"):
        make_test(**{**kafka, "settings": {"socket_timeout_ms": "50"}})


@pytest.mark.parametrize(("settings", "workload", "told"), [
    ({}, "queue", "needs queues, which the client does not provide; it provides logs"),
    ({"acks": "1"}, "log", "transactional=true needs acks=all"),
    ({"library": "librdkafka"}, "log", "--set transactional=True needs --set library=aiokafka"),
])
def test_transactions_are_those_of_logs_by_one_library(settings: dict[str, str], workload: str, told: str) -> None:
    pytest.importorskip("aiokafka")
    pytest.importorskip("confluent_kafka")
    kafka = {**PLAIN, "system": "kafka", "workload": workload, "settings": {"transactional": "true", **settings}}
    with pytest.raises(UsageError, match=told):
        make_test(**kafka)


def test_what_uncommitted_reads_may_show_is_not_promised_in_transactions_alone() -> None:
    pytest.importorskip("aiokafka")
    kafka = {**PLAIN, "system": "kafka", "workload": "log"}
    for settings, exempt in (({"transactional": "true"}, True), ({}, False)):
        test = make_test(**{**kafka, "settings": {"isolation_level": "read_uncommitted", **settings}})
        found = exemptions_of(test, WORKLOADS.load("log").guarantees)
        assert found == ({"log-offsets": ["from-nowhere"]} if exempt else {})


def test_options_take_the_type_of_their_default() -> None:
    declared = [Option("a", 1, ""), Option("b", 1.0, ""), Option("c", False, ""), Option("d", "x", "")]
    assert convert_options(declared, {"a": "2", "b": "3", "c": "yes"}) == {"a": 2, "b": 3.0, "c": True, "d": "x"}


def test_a_test_survives_storage() -> None:
    test = make_test(**{**PLAIN, "nemesis": "partition,kill", "settings": {"partitions": "unspecified"}})
    assert Test.from_json(test.to_json()) == test


def test_the_printed_command_names_everything(tmp_path: Path) -> None:
    test = make_test(**{**PLAIN, "settings": {"partitions": "unspecified"}})
    words = command_line(test, tmp_path).split()
    assert words[:4] == ["stormproof", "test", "--system", "joram"]
    assert "partitions=unspecified" in words
    given = parse_assignments(words[i + 1] for i, word in enumerate(words) if word == "--set")
    assert make_test(**{**PLAIN, "settings": given}) == test

    brief = command_line(test, tmp_path, brief=True).split()
    assert brief[:4] == words[:4] and [word for word in brief if "=" in word] == ["partitions=unspecified"]
    assert changed(test) == ["partitions"] and changed(make_test(**PLAIN)) == []
    assert changed(make_test(**{**PLAIN, "settings": {"producers": "6", "consumers": "3"}})) == ["producers"]
    usual = command_line(make_test(**PLAIN), tmp_path, brief=True)
    assert "--set" not in usual and f"--store {tmp_path}" in usual


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sytem = 'joram'", "unknown key 'sytem'; did you mean 'system'"),
        ("nodes = 'three'", "nodes must be an integer, not a string"),
        ("nodes = true", "nodes must be an integer, not a boolean"),
        ("time-limit = 'long'", "time-limit must be a number, not a string"),
        ("json = 1", "json must be a boolean, not an integer"),
        ("set = 'queues=2'", "set must be a table, not a string"),
        ("nemesis = ['kill', 3]", "nemesis must be a string or an array of these, not an array with an integer .3.$"),
        ("system = ['joram']", "system must be a string, not an array$"),
        ("rate = {a = 1}", "rate must be a number, not a table$"),
        ("rate = 1979-05-27", "rate must be a number, not a date .1979-05-27.$"),
        ("nodes = 3.5", "nodes must be an integer, not a float .3.5.$"),
        ("set.queues = [1]", "set.queues must be a string, a number or a boolean, not an array$"),
        ("set.queues = 07:32:00", "set.queues must be a string, a number or a boolean, not a time"),
        ("nodes = ", "not TOML"),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "test.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_config(path, keys_of_test())


@pytest.mark.parametrize("name", ["test", "simulate"])
def test_a_config_file_takes_every_option(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {word.removeprefix("--") for parameter in command.params for word in parameter.opts}
    assert set(keys_of(command)) == options - {"config", "design", "help", "-h"}


def test_a_config_file(tmp_path: Path) -> None:
    path = tmp_path / "test.toml"
    path.write_text('nemesis = ["partition", "kill"]\ntime-limit = 9\n[set]\npartitions = "unspecified"\n')
    assert read_config(path, keys_of_test()) == {
        "nemesis": ["partition", "kill"], "time-limit": 9, "set": {"partitions": "unspecified"}}  # fmt: skip
    with pytest.raises(UsageError, match="existing TOML file"):
        read_config(tmp_path / "missing.toml", keys_of_test())


@pytest.mark.parametrize(("command", "own", "nemesis"), [
    ("test", 'nemesis = ["partition", "kill"]\nbackend = "sim"\n', ("partition", "kill")),
    ("simulate", 'nemesis = ["pause,kill"]\n', ("pause", "kill")),
])  # fmt: skip
def test_the_command_line_wins_over_its_config_file(
    command: str, own: str, nemesis: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test.toml"
    path.write_text(own + 'time-limit = 9\nrate = 30\njson = true\n'
                    '[set]\npartitions = "unspecified"\nqueues = 3\nboth_sides = true\n')  # fmt: skip
    seen: list[Any] = []

    def run(*arguments: Any, **more: Any) -> None:
        seen.extend([arguments, more])
        raise typer.Exit

    monkeypatch.setattr("harness.run.repeat.run_test", run)
    monkeypatch.setattr("harness.sim.command.run_campaign", run)
    typer.main.get_command(app)(
        [command, "--rate=20", "--set", "queues=2", "--config", str(path), "--set", "poll=0.5"], standalone_mode=False)
    (described, *_), more = seen
    test = described if command == "test" else described[0].test(1)
    assert (test.nemesis, test.time_limit, test.rate) == (nemesis, 9.0, 20.0)
    told = {name: test.options[name] for name in ("partitions", "queues", "both_sides", "poll")}
    assert told == {"partitions": "unspecified", "queues": 2, "both_sides": True, "poll": 0.5}
    assert more["quiet" if command == "test" else "as_json"] is True


def test_assignments_need_an_equals_sign() -> None:
    with pytest.raises(UsageError, match="name=value"):
        parse_assignments(["partitions"])
