"""Commands in environments that they were not made for: each does what it was asked for, or ends with status 3 and one
line; never a traceback, never a verdict that is not the run's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from checker_histories import depth, drained, sent, store_run
from hostile_files import run_folder

ROOT = Path(__file__).resolve().parents[2]
NASTY = "a b;touch pwned;$(touch pwned)`touch pwned`'\"\n-rf"
FULL_DISK = (
    'mount -t tmpfs -o size=1m none "$1" && cp -r "$2" "$1/store" && head -c 2m /dev/zero >"$1/fill"; '
    'shift 2; exec "$@"'
)


@dataclass(frozen=True)
class Surroundings:
    """What a command finds: ``shell`` runs before it, ``environment`` is added to ours."""

    name: str
    shell: str = 'exec "$@"'
    environment: Mapping[str, str] = field(default_factory=dict)
    told: str = ""
    """What the line says; empty: the command may as well do what it was asked for."""


SURROUNDINGS = (
    Surroundings("a folder for temporary files with a nasty name", environment={"TMPDIR": f"FOLDER/{NASTY}"}),
    Surroundings("no folder for temporary files", environment={"TMPDIR": "FOLDER/nowhere"}),
    Surroundings("no home", environment={"HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}),
    Surroundings("an old locale", environment={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
    Surroundings("a folder that is gone", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'),
    Surroundings("few files", 'ulimit -n 24; exec "$@"'),
    Surroundings("little memory", 'ulimit -v 600000; exec "$@"'),
    Surroundings("little data", 'ulimit -d 60000; exec "$@"'),
    Surroundings("data for a few libraries", 'ulimit -d 100000; exec "$@"'),
    Surroundings("files of no size", 'ulimit -f 0; exec "$@"'),
    Surroundings("no input", 'exec "$@" <&-'),
    Surroundings("output that is full", 'exec "$@" >/dev/full', told="output|stdout"),
    Surroundings("output that is closed", 'exec "$@" >&-', told="output|stdout"),
    Surroundings("a cache of numba's that can't be written", environment={"NUMBA_CACHE_DIR": "/proc/nowhere"}),
)
COMMANDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "porcupine": (0, ("porcupine", "check", "--model", "register", "FOLDER/good.jsonl")),
    "illegal": (1, ("porcupine", "check", "--model", "register", "FOLDER/bad.jsonl")),
    "report": (0, ("stormproof", "report", "--store", "FOLDER/store")),
    "recover": (0, ("stormproof", "recover", "--store", "FOLDER/store")),
    "list": (0, ("stormproof", "list", "--json")),
    "check": (1, ("stormproof", "check", "--again", "--store", "FOLDER/invalid", "latest")),
    "import": (1, ("stormproof", "import", "--workload", "register", "--store", "FOLDER/imported", "FOLDER/bad.jsonl")),
}
"""With the status where nothing is in their way."""


def history(path: Path, *values: int) -> None:
    """Writes of 1, and reads of these."""
    rows = [("write", 1), *(("read", value) for value in values)]
    lines = ({"process": 0, "type": t, "f": f, "value": v} for f, v in rows for t in ("invoke", "ok"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hostile")
    (found / NASTY).mkdir()
    run_folder(found / "store")
    store_run(found / "invalid" / "20260101T000000-joram-queue-1-0001", [*sent(0, (0, 0)), *drained(), *depth()])
    history(found / "good.jsonl", 1)
    history(found / "bad.jsonl", 2)
    return found


def done_in(place: Surroundings, command: str, folder: Path, *more: str) -> None:
    """Run a command, and see that it ends as it should."""
    usual, arguments = COMMANDS[command]
    line = [argument.replace("FOLDER", str(folder)) for argument in arguments]
    environment = {name: text.replace("FOLDER", str(folder)) for name, text in place.environment.items()}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "checkers/porcupine-py")])
    before = [str(folder / "disk"), str(folder / "store")] if more else []
    done = subprocess.run(
        [*more, "sh", "-c", place.shell, "sh", *before, sys.executable, "-m", *line],
        capture_output=True, text=True, check=False, cwd=folder, timeout=120,
        env={**os.environ, **environment, "PYTHONPATH": paths},
    )  # fmt: skip
    told = done.stderr.strip()
    assert "Traceback" not in told, told
    assert done.returncode in ((3,) if place.told else (usual, 3)), (done.returncode, told)
    assert done.returncode != 1 or re.search("illegal|invalid", done.stdout, re.IGNORECASE), (done.stdout, told)
    if done.returncode == 3:
        ours = [text for text in told.splitlines() if text.startswith(("porcupine: ", "stormproof: "))]
        assert len(ours) == 1, told
        assert not place.told or any(word in ours[0] for word in place.told.split("|"))
    assert not list(folder.rglob("pwned"))


QUICK = [(place, command) for place in SURROUNDINGS for command in ("illegal", "check")
         if place.name == "little data" or (place.name, command) == ("few files", "illegal")]  # fmt: skip


@pytest.mark.parametrize(("place", "command"), QUICK, ids=lambda each: getattr(each, "name", each))
def test_a_command_ends_well_where_it_is_narrow(place: Surroundings, command: str, folder: Path) -> None:
    done_in(place, command, folder)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", SURROUNDINGS, ids=lambda place: place.name)
def test_every_command_ends_well_wherever_it_is(place: Surroundings, command: str, folder: Path) -> None:
    done_in(place, command, folder)


@pytest.mark.soak
def test_a_full_disk_is_told_in_one_line(folder: Path) -> None:
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    (folder / "disk").mkdir()
    place = Surroundings("a full disk", FULL_DISK, {"TMPDIR": str(folder / "disk")}, told="can't write|No space|full")
    command = COMMANDS["report"]
    arguments = tuple(argument.replace("FOLDER/store", "FOLDER/disk/store") for argument in command[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMMANDS, "report", (command[0], arguments))  # type: ignore[arg-type]
        done_in(place, "report", folder, *own)
