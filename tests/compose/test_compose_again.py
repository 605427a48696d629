"""The command that runs a test of a Compose file again: what a person would type, and the same test."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.backends.compose.command import variables_in
from harness.cli import app
from harness.run import repeat
from harness.run.describe import command_line
from stormproof.errors import StormproofError
from stormproof.run_folder import environment_read
from stormproof.test import Test

pytestmark = pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")

PLAIN = "services: {a: {image: x}, b: {image: x, scale: 2}, c: {image: x, profiles: [p]}}\n"
DECLARED = f"""{PLAIN}x-stormproof:
  client: redis
  replicas: [b, a]
  settings: {{wait: "${{WAIT:-1}}", producers: 4}}
  guarantees: {{duplicated: not promised}}
"""

CLIENT = """#!/bin/sh
echo '{"stormproof": 1, "can": ["queues"], "port": 7}'
cat >/dev/null
"""


@pytest.mark.parametrize(("content", "words", "told"), [
    (PLAIN, "--replicas b --client redis", "--replicas b-1,b-2 --client redis"),
    (PLAIN, "--replicas a,c --client redis --profile p", "--profile p --replicas a,c --client redis"),
    (PLAIN, "--replicas a --client exec:'./client -x 1'", "--replicas a --client 'exec:{folder}/client -x 1'"),
    (PLAIN, "--test-commands b:/t", "--test-commands b:/t"),
    (DECLARED, "", ""),
    (DECLARED, "--set wait=0 --set producers=4 --set not_promised=", "--set not_promised= --set wait=0"),
    (DECLARED, "--env-file other.env --replicas a", "--env-file {folder}/other.env --replicas a"),
])
def test_the_same_test_again(content: str, words: str, told: str, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    file = tmp_path / "compose.yml"
    file.write_text(content)
    (tmp_path / "other.env").write_text("WAIT=7\n")
    (tmp_path / "client").write_text(CLIENT)
    (tmp_path / "client").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    first = planned(["--compose", "compose.yml", *shlex.split(words), "--nemesis", "none", "--seed", "5"], monkeypatch)
    command = shlex.split(command_line(first, Path("runs")))
    mine = shlex.split(told.format(folder=tmp_path))
    given, settings = mine, []
    if "--set" in mine:
        given, settings = mine[:mine.index("--set")], mine[mine.index("--set"):]
    assert command == ["stormproof", "test", "--compose", str(file), *given, "--workload", first.workload, "--nemesis",
                       "none", "--time-limit", "30", "--rate", "200", "--seed", "5", "--store", "runs", *settings]
    monkeypatch.chdir("/")
    second = planned(command[2:], monkeypatch)
    if program := first.options.get("command"):
        second = replace(second, options={**second.options, "command": program})  # its path is absolute there
    assert second == first


def test_a_file_that_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the test needs is still told."""
    file = tmp_path / "compose.yml"
    file.write_text(DECLARED)
    test = planned(["--compose", str(file), "--nemesis", "none"], monkeypatch)
    file.unlink()
    command = command_line(test, Path("runs"))
    assert "--replicas b-1,b-2,a --client redis" in command
    for setting in ("wait=1", "producers=4", "not_promised=duplicated"):
        assert f"--set {setting}" in command


def test_the_names_of_variables_and_no_values(tmp_path: Path) -> None:
    """Those of files that are extended, of containers, and of the extension; not those of comments."""
    (tmp_path / "base.yml").write_text("services: {b: {image: 'x:${TAG:?say which}', environment: [PASSED, A=$ONE]}}")
    (tmp_path / "compose.yml").write_text("""
        services:
          a: {extends: {file: base.yml, service: b}, command: "echo $$SHELL ${TWO:-$THREE} # $FOUR"}  # $COMMENT
          c: {image: x, environment: {ALSO: null, SET: 1}}
        x-stormproof: {settings: {wait: "${WAIT-0}"}}
    """)
    found = variables_in([tmp_path / "compose.yml"])
    assert found == ("ALSO", "FOUR", "ONE", "PASSED", "TAG", "THREE", "TWO", "WAIT")
    told = environment_read({"environment": {name: name == "WAIT" for name in found}})
    assert told == f"{', '.join(found)} (environment variables; set in this run: WAIT)"
    assert environment_read({}) == environment_read({"environment": {}}) == ""


def planned(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Test:
    """Return the test that a command line describes."""
    seen: list[Test] = []

    def note(test: Test, *_: Any, **__: Any) -> None:
        seen.append(test)
        raise StormproofError("noted")

    monkeypatch.setattr(repeat, "run_test", note)
    with pytest.raises(StormproofError, match="noted"):
        typer.main.get_command(app.app)(["test", *words], standalone_mode=False)
    return seen[0]
