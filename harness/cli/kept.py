"""Commands about kept nodes (``stormproof test --keep-nodes``): manual faults, a shell, removal."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from harness.cli.common import DEFAULT_STORE, StoreOption
from stormproof.errors import StormproofError
from stormproof.run_folder import HARNESS_LOG, is_alive

KEEP = "--keep-nodes"
KEEP_HELP = "leave the nodes after the run, or only after one that is not valid (=on-failure), until `stormproof down`"
RunOption = Annotated[str, typer.Option("--run", help="run that owns the nodes  [default: the latest with kept nodes]")]
_DOWN_LIMIT = 60.0
_CHUNK = 1 << 16


def with_policy(words: list[str]) -> list[str]:
    """Return a command line in which --keep-nodes has a value."""
    return [f"{KEEP}=always" if word == KEEP else word for word in words]


def fault(
    names: Annotated[list[str], typer.Argument(help="FAMILY or FAMILY:KIND, as --nemesis takes them")],
    run: RunOption = "",
    seed: Annotated[int | None, typer.Option(help="seed of the drawn kinds and targets  [default: fresh]")] = None,
    seconds: Annotated[float | None, typer.Option("--for", help="heal after this number of seconds", min=0)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value of the fault")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Inject faults into nodes that were kept, until `stormproof heal`.

    stormproof fault pause:leader partition:bridge --for 10
    """
    from harness.run.kept_nodes import ask, find_kept, sentences
    from harness.run.settings import parse_assignments

    run_dir = find_kept(store, run)
    given = parse_assignments(settings or [])
    try:
        for name in ",".join(names).split(","):
            order = {"do": "fault", "name": name, "seed": seed, "settings": given}
            print("\n".join(sentences(ask(run_dir, order)["lines"])), flush=True)
        time.sleep(seconds or 0)
    finally:  # also after Ctrl-C
        if seconds is not None:
            print("\n".join(sentences(ask(run_dir, {"do": "heal"})["lines"])), flush=True)


def shell(
    node: Annotated[str, typer.Argument(help="a node's name, like n1")],
    run: RunOption = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Open a root shell on a node that was kept; without a terminal it reads commands from standard input."""
    from harness.run.kept_nodes import ask, connect, find_kept

    with connect(run_dir := find_kept(store, run)) as sock:
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        size = shutil.get_terminal_size()
        ask(run_dir, {"do": "shell", "node": node, "terminal": terminal, "rows": size.lines, "columns": size.columns,
                      "term": os.environ.get("TERM", "dumb")}, sock)  # fmt: skip
        with _raw(sys.stdin.fileno()) if terminal else contextlib.nullcontext():
            _relay(sock)


def down(
    runs: Annotated[list[str] | None, typer.Argument(help="runs; all whose nodes are kept by default")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove nodes that were kept."""
    from harness.run.kept_nodes import ask, find_kept, kept_runs

    found = [find_kept(store, name) for name in runs or []] or kept_runs(store)
    for run_dir in found:
        ask(run_dir, {"do": "down"})
        deadline = time.monotonic() + _DOWN_LIMIT
        while is_alive(run_dir):
            if time.monotonic() > deadline:
                raise StormproofError(f"the nodes of {run_dir.name} are not gone after {_DOWN_LIMIT:g} s; see "
                                      f"{run_dir / HARNESS_LOG}")
            time.sleep(0.05)
        print(f"removed the nodes of {run_dir.name}")
    if not found:
        print("no nodes are kept")


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _relay(sock: socket.socket) -> None:
    """Transfer bytes in both directions until the shell ends."""
    source: int | None = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([sock.fileno(), *([] if source is None else [source])], [], [])
        if sock.fileno() in ready:
            data = sock.recv(_CHUNK)
            if not data:
                return
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        if source is not None and source in ready:
            if data := os.read(source, _CHUNK):
                sock.sendall(data)
            else:
                sock.shutdown(socket.SHUT_WR)
                source = None
