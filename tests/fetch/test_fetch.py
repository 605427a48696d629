"""Fetched brokers, by a double of Maven that takes its files from a folder of this machine."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from stormproof.errors import StormproofError, UsageError
from stormproof.fetch.fetched import MANIFEST, Fetched, sha256_of
from stormproof.fetch.fetching import fetch
from stormproof.fetch.maven import demand_same, unpack

ROOT = Path(__file__).resolve().parents[2]
MAVEN = """#!/bin/sh
echo "$$" >> "$DOUBLE/calls"
for word; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done
[ ! -e "$DOUBLE/fails" ] || { cat "$DOUBLE/fails"; exit 1; }
mkdir -p "$out" && cp "$DOUBLE"/*.jar "$out"
while [ -e "$DOUBLE/waits" ]; do sleep 0.05; done
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program `mvn`, found first, and the file that it brings; the cache is a folder of the test's."""
    folder = tmp_path / "double"
    folder.mkdir()
    (folder / "mvn").write_text(MAVEN)
    (folder / "mvn").chmod(0o755)
    (folder / "broker.jar").write_bytes(b"a jar")
    for name, value in (("DOUBLE", folder), ("PATH", f"{folder}:{os.environ['PATH']}"), ("XDG_CACHE_HOME", tmp_path)):
        monkeypatch.setenv(name, str(value))
    return folder


def command(*words: str) -> subprocess.Popen[str]:
    """The command line, as a person gives it."""
    return subprocess.Popen([sys.executable, "-m", "harness", "fetch", *words], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def left(wanted: Fetched) -> list[str]:
    """What there is besides lock files."""
    folder = wanted.path.parent
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock")) if folder.exists() else []


def await_calls(double: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not (double / "calls").exists() or len((double / "calls").read_text().split()) < count:
        assert time.monotonic() < deadline, "the client was not called"
        time.sleep(0.05)


def test_a_version_is_brought_once(double: Path) -> None:
    told: list[str] = []
    wanted = Fetched("zookeeper", "9.9.9")
    assert not wanted.is_there()
    assert fetch(wanted, told.append, lambda line: None) == {"broker.jar": sha256_of(double / "broker.jar")}
    assert wanted.is_there() and "this version is not pinned" in told[0]
    assert (wanted.path / "libs" / "broker.jar").read_bytes() == b"a jar"
    assert json.loads((wanted.path / MANIFEST).read_text())["bytes"] == len(b"a jar")
    assert fetch(wanted, told.append, lambda line: None) == {}
    assert len((double / "calls").read_text().split()) == 1
    assert left(wanted) == ["9.9.9"]


def test_the_command_tells_what_is_there(double: Path) -> None:
    first = command("zookeeper", "--version", "9.9.9")
    out, err = first.communicate(timeout=120)
    assert first.returncode == 0 and "zookeeper 9.9.9 (not pinned) is there: " in out, err
    again = command("zookeeper", "--version", "9.9.9")
    assert "was there already" in again.communicate(timeout=120)[0]
    listed = json.loads(command("--list", "--json").communicate(timeout=120)[0])["brokers"]
    there = {(each["name"], each["version"]): (each["there"], each["pinned"]) for each in listed}
    assert there["zookeeper", "9.9.9"] == (True, False)
    assert there["kafka", Fetched("kafka").version] == (False, True)


def test_files_that_the_lock_does_not_know_are_refused(double: Path) -> None:
    wanted = Fetched("zookeeper")
    assert wanted.is_pinned
    with pytest.raises(StormproofError, match=r"\.jar of the lock file did not come; nothing was installed"):
        fetch(wanted, print, print)
    assert not wanted.is_there() and left(wanted) == []
    with pytest.raises(StormproofError, match=r"wrong checksum of a\.jar"):
        demand_same(wanted, {"a.jar": "00"}, {"a.jar": "11"})
    with pytest.raises(StormproofError, match=r"a\.jar came and is not in the lock file"):
        demand_same(wanted, {"a.jar": "11"}, {})


@pytest.mark.parametrize(("said", "told"), [
    ("[ERROR] repo: Unknown host", "mvn can't reach its registry; nothing was installed: repo: Unknown host"),
    ("[ERROR] Could not find artifact a:b", "mvn does not find this version"),
    ("[ERROR] Checksum validation failed", "wrong checksum, says mvn"),
    ("[ERROR] write: No space left on device", "the disk is full"),
    ("[ERROR] something else", "mvn ended with status 1: something else; nothing was installed"),
])  # fmt: skip
def test_a_failure_is_one_line(said: str, told: str, double: Path) -> None:
    (double / "fails").write_text(f"[INFO] begun\n{said}\n")
    done = command("zookeeper", "--version", "9.9.9")
    _, err = done.communicate(timeout=120)
    assert done.returncode == 3 and told in err and len(err.splitlines()) == 1, err
    assert left(Fetched("zookeeper", "9.9.9")) == []


def test_a_missing_client_is_named_with_its_command(double: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StormproofError, match=r"comes by mvn, which is not installed; run: apt-get install maven"):
        fetch(Fetched("zookeeper", "9.9.9"), print, print)


@pytest.mark.parametrize("version", ["../x", "v1", "", "1/2", "1 2"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    if version:
        with pytest.raises(UsageError):
            Fetched("kafka", version)
    else:
        assert Fetched("kafka", version).is_pinned


def test_a_second_fetch_waits_for_the_first(double: Path) -> None:
    (double / "waits").touch()
    first = command("zookeeper", "--version", "9.9.9")
    await_calls(double, 1)
    second = command("zookeeper", "--version", "9.9.9")
    assert second.stdout is not None
    assert "another process is fetching zookeeper 9.9.9; waiting for it" in second.stdout.readline()
    (double / "waits").unlink()
    assert (first.wait(120), second.wait(120)) == (0, 0)
    assert len((double / "calls").read_text().split()) == 1


def test_ctrl_c_leaves_nothing(double: Path) -> None:
    (double / "waits").touch()
    process = command("zookeeper", "--version", "9.9.9")
    await_calls(double, 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    client = int((double / "calls").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(client, 0)
    assert left(Fetched("zookeeper", "9.9.9")) == []


@pytest.mark.parametrize("name", ["top/../../evil", "/evil", "top/a\\b"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_names_a_place_elsewhere_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    archive, folder = tmp_path / f"a.{kind}", tmp_path / "folder"
    folder.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr(zipfile.ZipInfo(name), b"x")
    else:
        with tarfile.open(archive, "w") as tarred:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tarred.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(StormproofError, match="names the place"):
        unpack(archive, folder)
    assert list(folder.rglob("*")) == [] and not (tmp_path / "evil").exists()


def test_an_archive_is_unpacked_without_its_topmost_folder_and_links(tmp_path: Path) -> None:
    archive, folder = tmp_path / "a.tar.gz", tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(archive, "w:gz") as tarred:
        for name, mode in (("top/bin/run", 0o755), ("top/libs/a.jar", 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = 1, mode
            tarred.addfile(entry, io.BytesIO(b"x"))
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarred.addfile(link)
    unpack(archive, folder)
    files = {str(path.relative_to(folder)): path.stat().st_mode & 0o100 for path in folder.rglob("*") if path.is_file()}
    assert files == {"bin/run": 0o100, "libs/a.jar": 0}
    assert not (folder / "link").is_symlink()
