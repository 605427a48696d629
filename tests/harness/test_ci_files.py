"""The files of docs/nights.md: each is parsed, and what they run is run, in a small project of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from junitparser import JUnitXml

from harness.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "docs" / "ci"
NIGHT = """
[[case]]
name = "small"
system = "standalone"
nemesis = "none"
time-limit = 3
seeds = "1-2"
set = { min_ok = 5 }
"""
GIVEN = {"GITHUB_SHA": "0123abc", "CI_COMMIT_SHA": "0123abc"}


def github_steps(job: str) -> list[dict[str, Any]]:
    steps = yaml.safe_load((CI / "github.yml").read_text())["jobs"][job]["steps"]
    assert isinstance(steps, list)
    return steps


def gitlab_job(name: str) -> dict[str, Any]:
    job = yaml.safe_load((CI / "gitlab.yml").read_text())[name]
    assert isinstance(job, dict)
    return job


def cron_commands() -> list[str]:
    """Each line's command as cron gives it to a shell, with the place of the project left to the test."""
    lines = [line for line in (CI / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    settings = [line for line in lines if re.fullmatch(r"[A-Z]+=\S+", line)]
    assert settings == ["MAILTO=storm@example.org", "STORM=/srv/storm"]
    matched = [re.fullmatch(r"(\d+) (\d+) \* \* \* ((?:\\%|[^%])+)", line) for line in lines if line not in settings]
    for found in matched:
        assert found is not None and int(found[1]) < 60 and int(found[2]) < 24, "a bare % is a line break to cron"
    return [found[3].replace("\\%", "%") for found in matched if found is not None]


def unit(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (CI / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def scripts() -> Iterator[str]:
    """All that the files have shells or systemd run."""
    for job in ("seeds", "night"):
        yield from (step["run"] for step in github_steps(job) if "run" in step)
        yield from (*gitlab_job(job)["script"], *gitlab_job(job).get("after_script", ()))
    yield from cron_commands()
    service = unit("stormproof-night.service")
    yield from (*service["ExecStartPre"], *service["ExecStart"], *service["ExecStopPost"])


def ours(script: str) -> list[list[str]]:
    """The words of each call of Stormproof in a script."""
    joined = script.replace("\\\n", " ")
    found = re.findall(r"(?<![\w/.-])(?:/srv/storm/)?(?:\.venv/bin/)?stormproof ([a-z][^\n|>]*)", joined)
    return [shlex.split(re.sub(r"\$\([^)]*\)", "x", words)) for words in found]


@pytest.mark.requirement("H11", part=True)
def test_every_command_of_the_files_is_one_that_we_take() -> None:
    group: Any = typer.main.get_command(app)
    calls = [words for script in scripts() for words in ours(script)]
    for name, *words in calls:
        group.commands[name].make_context(name, list(words), resilient_parsing=False)
    assert sorted(words[0] for words in calls) == ["gc"] * 4 + ["heal"] + ["nightly"] * 4 + ["simulate"] * 2
    with pytest.raises(Exception, match="No such option"):
        group.commands["gc"].make_context("gc", ["--keap", "1d"])


def test_what_is_written_is_what_is_kept() -> None:
    for job in ("seeds", "night"):
        kept = next(step["with"]["path"] for step in github_steps(job) if "upload-artifact" in step.get("uses", ""))
        run = "\n".join(step.get("run", "") for step in github_steps(job))
        assert all(name in run or name == "runs" for name in kept.split())
        artifacts = gitlab_job(job)["artifacts"]
        script = "\n".join(gitlab_job(job)["script"])
        assert artifacts["when"] == "always" and f"--junit {artifacts['reports']['junit']}" in script
        assert all(name in script or name == "runs" for name in artifacts["paths"])
    restored, saved = (step["with"]["path"] for step in github_steps("night") if "/cache/" in step.get("uses", "") or
                       "cache/" in step.get("uses", ""))
    assert restored == saved == "runs" and gitlab_job("night")["cache"]["paths"] == ["runs"]
    assert gitlab_job("night")["allow_failure"] == {"exit_codes": 2}


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    service, timer = unit("stormproof-night.service"), unit("stormproof-night.timer")
    assert service["Type"] == ["oneshot"] and service["KillSignal"] == ["SIGINT"] and timer["Persistent"] == ["true"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    program = tmp_path / "stormproof"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("stormproof-night.service", "stormproof-night.timer"):
        text = (CI / name).read_text().replace("/srv/storm/.venv/bin/stormproof", str(program))
        (tmp_path / name).write_text(text)
    for words in (["verify", "--man=no", *map(str, sorted(tmp_path.glob("stormproof-night.*")))],
                  ["calendar", *timer["OnCalendar"]]):
        done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
        told = [line for line in done.stderr.splitlines() if "stormproof-night" in line]
        assert done.returncode == 0 and not told, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a small night, whose `stormproof` is this one."""
    folder = tmp_path / "project"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "nightly.toml").write_text(NIGHT)
    program = folder / ".venv" / "bin" / "stormproof"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m harness "$@"\n')
    program.chmod(0o755)
    return folder


def run(project: Path, script: str, shell: tuple[str, ...] = ("bash", "-e")) -> subprocess.CompletedProcess[str]:
    path = f"{project / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **GIVEN, "PATH": path, "STORM": str(project),
                   "GITHUB_STEP_SUMMARY": str(project / "summary.md")}
    return subprocess.run([*shell, "-c", script], cwd=project, env=environment, capture_output=True, text=True,
                          check=False, timeout=170)


@pytest.mark.requirement("H11")
def test_the_night_of_github_is_run(project: Path) -> None:
    (script,) = (step["run"] for step in github_steps("night") if step.get("name") == "Night")
    done = run(project, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing new" in (project / "summary.md").read_text()
    (suite,) = JUnitXml.fromfile(str(project / "night.xml"))
    assert (suite.tests, suite.failures, suite.errors) == (2, 0, 0)
    assert [(case.classname, case.name) for case in suite] == [
        ("night.small", f"standalone queue none on sim, seed {seed}") for seed in (1, 2)]


@pytest.mark.soak
def test_the_nights_of_gitlab_cron_and_systemd_are_run(project: Path) -> None:
    (script,) = gitlab_job("night")["script"]
    done = run(project, script)
    assert done.returncode == 0 and "tag" not in done.stderr, done.stdout + done.stderr
    assert JUnitXml.fromfile(str(project / "night.xml")).tests == 2
    night, rest = cron_commands()
    for command in (night, rest):
        done = run(project, command, ("sh",))
        assert done.returncode == 0, done.stdout + done.stderr
    log = (project / "night.log").read_text()
    assert log.count("nothing new") == 1 and "removed 0 runs" in log
    service = unit("stormproof-night.service")
    for (command,) in (service["ExecStart"], service["ExecStopPost"]):
        done = run(project, command.replace("/srv/storm", str(project)), ("sh",))
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((project / "runs" / "nights").iterdir())) == 3
