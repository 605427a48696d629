"""A run as one file: there and back, and archives of strangers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.packing import pack, remove_unfinished, unpack
from stormproof.run_folder import RUN_SCHEMA, RunLock
from stormproof.store import Store

RUN = "20261101T000000-joram-queue-1-0a1b"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / RUN
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": RUN_SCHEMA, "run": RUN, "status": "checked"}))
    (folder / "history.parquet").write_bytes(os.urandom(5000))
    (folder / "logs" / "n1.log").write_text("hello\n")
    for name in ("lock", "made.jsonl", "pinned.json", "report.html.12.partial"):
        (folder / name).write_text("here only")
    (folder / "secret").symlink_to("/etc/passwd")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_is_packed_and_unpacked_whole(run_dir: Path, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    pack(run_dir, path)
    found = unpack(path, store)
    assert found == store.path / RUN
    whole = contents(run_dir)
    assert contents(found) == {name: whole[name] for name in ("run.json", "history.parquet", "logs/n1.log")}
    assert store.runs() == [found]
    assert sorted(each.name for each in store.path.iterdir()) == [RUN]


def test_copies_of_plug_ins_come_along_and_no_target_of_a_link(run_dir: Path, store: Store, tmp_path: Path) -> None:
    for name in ("mine.py", "helpers/__init__.py", "helpers/deep/words.py", "cache.pyc", ".hidden.py"):
        (run_dir / "plugins" / "echo" / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / "plugins" / "echo" / name).write_text(name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.py").write_text("secret")
    (elsewhere / "secret.log").write_text("secret")
    (run_dir / "plugins" / "linked").symlink_to(elsewhere)
    shutil.rmtree(run_dir / "logs")
    (run_dir / "logs").symlink_to(elsewhere)
    pack(run_dir, tmp_path / "run.zip")
    found = contents(unpack(tmp_path / "run.zip", store))
    assert sorted(found) == ["history.parquet", *(f"plugins/echo/{name}" for name in (
        "helpers/__init__.py", "helpers/deep/words.py", "mine.py")), "run.json"]  # fmt: skip
    assert found.items() <= contents(run_dir).items()


def test_what_is_there_already_is_left_alone(run_dir: Path, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    pack(run_dir, path)
    with pytest.raises(UsageError, match="there already"):
        pack(run_dir, path)
    unpack(path, store)
    with pytest.raises(UsageError, match="already"):
        unpack(path, store)


def test_a_run_under_way_is_not_packed(run_dir: Path, tmp_path: Path) -> None:
    with RunLock(run_dir), pytest.raises(UsageError, match="under way"):
        pack(run_dir, tmp_path / "run.zip")
    (run_dir / "undo.jsonl").write_text('{"id": 0, "undo": "network", "nodes": []}\n')
    with pytest.raises(UsageError, match="not healed"):
        pack(run_dir, tmp_path / "run.zip")
    assert not (tmp_path / "run.zip").exists()


def test_a_file_that_cannot_be_written_is_told(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(StormproofError, match="can't write"):
        pack(run_dir, tmp_path / "nowhere" / "run.zip")


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path


WHOLE = {f"{RUN}/run.json": json.dumps({"schema": RUN_SCHEMA, "run": RUN, "status": "checked"}).encode()}


@pytest.mark.parametrize(
    "name",
    ["/etc/x", f"{RUN}/../x", "../x", f"{RUN}/logs/../../x", f"{RUN}/a/b", f"{RUN}/", f"{RUN}/.hidden", "x/run.json",
     f"{RUN}/logs", f"{RUN}/logs/a/b", f"{RUN}/a\\..\\b", f"{RUN}/line\nbreak", RUN, f"{RUN}/" + "x" * 300,
     f"{RUN}/plugins/mine.py", f"{RUN}/plugins/a/mine.so", f"{RUN}/plugins/a/../b.py", f"{RUN}/plugins/.a/b.py",
     f"{RUN}/plugins/" + "a/" * 20 + "b.py"],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(name: str, store: Store, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="none of a run's files"):
        unpack(archive(tmp_path / "a.zip", {**WHOLE, name: b"x"}), store)
    assert not store.path.exists() or not list(store.path.iterdir())


def test_what_is_no_run_is_refused(store: Store, tmp_path: Path) -> None:
    for content in ({}, {f"{RUN}/history.parquet": b""}, {f"{RUN}/run.json": b"{"}):
        with pytest.raises(HistoryError):
            unpack(archive(tmp_path / "a.zip", content), store)
    for number, data in enumerate((b"", b"PK\3\4", b"no archive" * 100)):
        (tmp_path / f"{number}.zip").write_bytes(data)
        with pytest.raises(HistoryError, match="can't be unpacked"):
            unpack(tmp_path / f"{number}.zip", store)
    with pytest.raises(StormproofError, match="No such file"):
        unpack(tmp_path / "none.zip", store)
    assert not store.path.exists() or not list(store.path.iterdir())


def test_a_bomb_is_not_unpacked(store: Store, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {**WHOLE, f"{RUN}/history.parquet": bytes(1 << 24)})
    assert path.stat().st_size < 1 << 16
    with pytest.raises(HistoryError, match="--max-size"):
        unpack(path, store, most=1 << 20)
    assert not list(store.path.iterdir())
    assert unpack(path, store, most=1 << 25).exists()


def test_an_archive_cannot_make_links_or_programs_or_hold_a_name_twice(store: Store, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", WHOLE)
    link = zipfile.ZipInfo(f"{RUN}/report.html")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(link, "/etc/passwd")
    report = unpack(path, store) / "report.html"
    assert not report.is_symlink()
    assert report.read_text() == "/etc/passwd"
    assert not report.stat().st_mode & 0o111
    with zipfile.ZipFile(path, "a") as out, pytest.warns(UserWarning, match="Duplicate"):
        out.writestr(f"{RUN}/report.html", "again")
    with pytest.raises(StormproofError, match="File exists"):
        unpack(path, Store(tmp_path / "other"))


def test_damaged_content_is_noticed(store: Store, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {**WHOLE, f"{RUN}/history.parquet": os.urandom(1000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(HistoryError, match="can't be unpacked"):
        unpack(path, store)
    assert not list(store.path.iterdir())


def test_what_a_killed_unpacking_left_is_removed(store: Store) -> None:
    left = store.path / ".unpacking-x"
    left.mkdir(parents=True)
    with RunLock(left):
        assert remove_unfinished(store) == []
    assert remove_unfinished(store) == [left]
    assert not left.exists()
