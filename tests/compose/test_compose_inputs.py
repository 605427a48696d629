"""``stormproof test --compose`` with wrong input: exit status 3, and one line that says what is wrong."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from harness.cli.app import main

pytestmark = pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")

FILE = "services: {a: {image: x}, b: {image: x}}"
DECLARED = f"{FILE}\nx-stormproof: {{client: redis, replicas: [a]}}"


@pytest.mark.parametrize(("content", "words", "said"), [
    (None, "", "no such file"),
    ("services: {a: [", "--client redis --replicas a", ", line 1: "),
    ("services: {a: {image: x, wrong: 1}}", "--client redis --replicas a", "wrong"),
    (FILE, "--replicas a", "say which protocol clients speak: --client NAME"),
    (FILE, "--client redis", "say which services are the broker's replicas: --replicas NAME,NAME (services: a, b)"),
    (FILE, "--client rediss --replicas a", "rediss"),
    (FILE, "--client redis --replicas a,c", "the Compose file has no such container (known: a, b)"),
    (FILE, "--client redis --replicas a,a", "a replica is named twice"),
    (DECLARED, "--system redis", "leave out --system"),
    (DECLARED, "--nodes 3", "leave out --attach, --nodes and --backend"),
    (DECLARED, "--backend local", "leave out --attach, --nodes and --backend"),
    (DECLARED, "--env-file missing.env", "missing.env: no such file"),
    (DECLARED.replace("image: x", "image: x, privileged: true"), "", "service a has privileged: true"),
    (DECLARED, "--nemesis power", "service a has no volume"),
    (DECLARED, "--set nothing=1", "nothing"),
])
def test_wrong_input(content: str | None, words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "compose.yml", tmp_path / "store"
    if content is not None:
        file.write_text(content)
    argv = ["stormproof", "test", "--compose", str(file), "--store", str(store), *words.split()]
    monkeypatch.setattr(sys, "argv", argv)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    told = capsys.readouterr().err
    assert ended.value.code == 3, told
    assert said in told and len(told.strip().splitlines()) == 1
    assert not list(store.glob("*/run.json")), "no run began"
