"""Every reader of what may come from strangers, as the corpus meets it: a path in, a status and lines out."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile_files import run_folder

from stormproof.errors import EXIT_OF, StormproofError
from stormproof.run_folder import with_seal

REFUSED = 3


@dataclass(frozen=True)
class Outcome:
    """What a command would say: its exit status (None: it goes on without the file), and its lines on stderr."""

    status: int | None
    told: str


def _refusal(read: Callable[[], object], *errors: type[Exception]) -> Outcome:
    """The errors that a reader may raise are those that the command line tells in one line, with status 3."""
    try:
        read()
    except (StormproofError, *errors) as error:
        return Outcome(REFUSED, str(error))
    return Outcome(None, "")


def porcupine(path: Path, *options: str, model: str = "cas-register") -> Outcome:
    """The command ``porcupine check``."""
    from porcupine.cli import main

    verdict, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(verdict), contextlib.redirect_stderr(told):
        status = main(["check", "--model", model, "--max-history", "1M", *options, str(path)])
    return Outcome(status, (told.getvalue() or verdict.getvalue()).removesuffix("\n"))


@dataclass(frozen=True)
class InFolder:
    """A file of a run folder, and what reads it there; the rest of the folder is as it should be."""

    name: str
    read: Callable[[Path], Outcome]
    status: str = "recorded"

    def __call__(self, path: Path) -> Outcome:
        """Read a folder in which the file at ``path`` stands in place of the right one."""
        run_dir = run_folder(path.parent / "store", status=self.status)
        target = run_dir / self.name
        target.unlink(missing_ok=True)
        if self.status == "running":
            (run_dir / "history.parquet").unlink()
        if path.exists() or path.is_symlink():
            path.rename(target)
        if self.name == "ledger.jsonl" and target.is_file():
            sign_ledger(run_dir)
        return self.read(run_dir)


def sign_ledger(run_dir: Path) -> None:
    """Let the run's description tell the digest of the ledger that is there."""
    import hashlib

    info = json.loads((run_dir / "run.json").read_text())
    info["ledger_sha256"] = hashlib.sha256((run_dir / "ledger.jsonl").read_bytes()).hexdigest()
    (run_dir / "run.json").write_text(json.dumps(with_seal(info)))


def checked(run_dir: Path) -> Outcome:
    """``stormproof check``, as it judges one run; digests of the history are made right where it can be read."""
    import hashlib

    from checkers.run_check import check_run

    history = run_dir / "history.parquet"
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        if history.is_file() and (run_dir / "run.json").is_file():
            info = json.loads((run_dir / "run.json").read_text())
            info["history_file_sha256"] = hashlib.sha256(history.read_bytes()).hexdigest()
            (run_dir / "run.json").write_text(json.dumps(with_seal(info)))
    verdict = check_run(run_dir)
    if verdict.damage is not None:
        assert verdict.verdict == "unknown"
        return Outcome(REFUSED, verdict.damage)
    return Outcome(EXIT_OF[verdict.verdict], verdict.sentence)


def recovered(run_dir: Path) -> Outcome:
    """``stormproof recover``; and what the check says then, where it did not refuse."""
    from harness.run.recovery import recover

    found = _refusal(lambda: recover(run_dir))
    return found if found.status == REFUSED else checked(run_dir)


def reported(run_dir: Path) -> Outcome:
    """``stormproof report``: what can't be read is noted on the page."""
    from harness.analysis.coverage import note_log_events
    from reports.index_page import write_index
    from reports.run_page import write_report

    def write() -> None:
        note_log_events(run_dir)
        page = write_report(run_dir)
        write_index(run_dir.parent)
        assert page.stat().st_size > 1000

    return _refusal(write)


def stored(run_dir: Path) -> Outcome:
    """A verdict that is stored in place of what is there."""
    from checkers.run_check import check_run
    from checkers.verdict import write_verdict

    return _refusal(lambda: write_verdict(run_dir, check_run(run_dir)), OSError)


def loaded(run_dir: Path) -> Outcome:
    """``stormproof.load``."""
    from harness.store.dataframes import load

    return _refusal(lambda: load(run_dir.parent).run(run_dir.name).history())


def healed(run_dir: Path) -> Outcome:
    """What ``stormproof heal`` reads of a run's folder."""
    from harness.backends.ssh.remote import Remote
    from stormproof.history.undo import pending_undos
    from stormproof.resource_log import made_folders, unfinished

    def read() -> None:
        for each in (pending_undos, made_folders, unfinished, Remote.read):
            each(run_dir)

    return _refusal(read)


def configured(path: Path) -> Outcome:
    """``--config FILE``."""
    from harness.cli.config_file import STRING, TABLE, Key, read_config

    return _refusal(lambda: read_config(path, {"system": Key(STRING), "set": Key(TABLE)}))


def hosts(path: Path) -> Outcome:
    """``--hosts FILE``."""
    from harness.backends.ssh.hosts import read_hosts

    return _refusal(lambda: read_hosts({"hosts": str(path)}))


def node_configuration(path: Path) -> Outcome:
    """The configuration of a broker, in a process of its own; of the storage service."""
    from nodes.reference.api import ConfigError
    from nodes.reference.config import read_config
    from nodes.reference.storage.config import read_storage_config

    _refusal(lambda: read_storage_config(path), ConfigError)
    return _refusal(lambda: read_config(path), ConfigError)


def descriptor(path: Path) -> Outcome:
    """``stormproof broker --descriptor FILE``."""
    from nodes.reference.api import ConfigError
    from nodes.reference.server.start import start_config

    return _refusal(lambda: start_config(path, ["0", "/data", "0"], None), ConfigError)


def json_lines(path: Path) -> Outcome:
    """Histories as JSON lines."""
    from stormproof.history.jsonl import import_jsonl

    return _refusal(lambda: import_jsonl(path))


def plug_in(path: Path) -> Outcome:
    """``--check FILE.py:CLASS``, of a file that is no Python."""
    from harness.run import plugins

    file = path.with_suffix(".py")
    if path.exists() or path.is_symlink():
        path.rename(file)
    return _refusal(lambda: plugins.resolve(plugins.CHECK, f"{file}:Mine"))


def stomp_frames(path: Path) -> Outcome:
    """What a client sends, as the broker parses it."""
    from nodes.reference.server.frames import FrameError, command_of
    from nodes.stomp import Frame, FrameLimits, Parser, ProtocolError

    def read() -> None:
        parser = Parser(FrameLimits(header_bytes=1 << 14, headers=20, body=1 << 14))
        for item in [*parser.feed(path.read_bytes()), *parser.feed(b"")]:
            if isinstance(item, Frame) and item.command != "CONNECT":
                command_of(item, "c", reliable=False)

    return _refusal(read, ProtocolError, FrameError, OSError)


def link_frames(path: Path) -> Outcome:
    """What a peer sends, as a replica parses it."""
    from nodes.reference.designs.joram.messages import unpack
    from nodes.reference.replication.handshake import FrameParser, LinkError

    return _refusal(lambda: [unpack(frame) for frame in FrameParser().feed(path.read_bytes())], LinkError, OSError)


def storage_request(path: Path) -> Outcome:
    """What a broker asks of the storage service."""
    from nodes.reference.replication.handshake import FrameParser, LinkError
    from nodes.reference.storage.protocol import MalformedRequestError, changes_of

    def read() -> None:
        for content in FrameParser().feed(path.read_bytes()):
            changes_of(content)

    return _refusal(read, LinkError, MalformedRequestError, OSError)


READERS: Mapping[str, Callable[[Path], Outcome]] = {
    "porcupine": porcupine,
    "porcupine-jsonl": lambda path: porcupine(path, "--format", "jsonl"),
    "porcupine-edn": lambda path: porcupine(path, "--format", "edn"),
    "porcupine-kv": lambda path: porcupine(path, "--format", "porcupine-kv", model="kv"),
    "porcupine-log": lambda path: porcupine(path, "--format", "jepsen-log"),
    "porcupine-parquet": lambda path: porcupine(path, "--format", "parquet"),
    "run.json": InFolder("run.json", checked),
    "ledger": InFolder("ledger.jsonl", checked),
    "history": InFolder("history.parquet", checked),
    "journal": InFolder("journal.bin", recovered, "running"),
    "run.json of recover": InFolder("run.json", recovered, "running"),
    "load": InFolder("history.parquet", loaded),
    "config": configured,
    "hosts": hosts,
    "node-config": node_configuration,
    "descriptor": descriptor,
    "jsonl": json_lines,
    "plug-in": plug_in,
}
"""Those that must refuse what they can't read, or say why nothing is known."""

STREAMS: Mapping[str, Callable[[Path], Outcome]] = {
    "stomp": stomp_frames,
    "links": link_frames,
    "storage": storage_request,
}
"""Those that must refuse what is wrong, and wait where something may still follow."""

LENIENT: Mapping[str, Callable[[Path], Outcome]] = {
    "report of run.json": InFolder("run.json", reported),
    "report of verdict.json": InFolder("verdict.json", reported),
    "verdict in place of verdict.json": InFolder("verdict.json", stored),
    "report of ledger": InFolder("ledger.jsonl", reported),
    "report of history": InFolder("history.parquet", reported),
    "report of log": InFolder("logs/n1.log", reported),
    "report of log-events": InFolder("log-events.jsonl", reported),
    "undo": InFolder("undo.jsonl", healed),
    "made": InFolder("made.jsonl", healed),
    "remote": InFolder("remote.json", healed),
}
"""Those that go on without what they can't read, or tell it in one line."""


def outcome_of(reader: str, path: Path) -> Outcome:
    """What a reader makes of a file."""
    found: Any = {**READERS, **LENIENT, **STREAMS}[reader](path)
    assert isinstance(found, Outcome)
    return found
