"""Commands about machines: their abilities, remains of runs on them, permission for faults; and one manual broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from harness.cli.common import (
    DEFAULT_STORE,
    HostsOption,
    JsonOption,
    MaxHistoryOption,
    SshConfigOption,
    StoreOption,
)
from harness.cli.output import print_json
from harness.run.progress import console
from stormproof.errors import EXIT_ERROR, BackendError, UsageError
from stormproof.history.read_limits import set_max_history
from stormproof.store import Store, damaged_runs
from stormproof.text import escaped


def heal(store: StoreOption = DEFAULT_STORE) -> None:
    """Undo what a dead harness left behind: faults, containers, networks, processes, scratch folders.

    Faults that were injected by hand into nodes that are kept are undone, too; the nodes stay.
    """
    from harness.run.healing import heal_store
    from harness.run.kept_nodes import ask, kept_runs, sentences

    lines = heal_store(store)
    for run_dir in kept_runs(store):
        lines += [f"{run_dir.name}: {line}" for line in sentences(ask(run_dir, {"do": "heal"})["lines"])]
    for line in lines:
        print(escaped(line))
    if not lines:
        print("nothing to heal")
    damaged = damaged_runs(Store(store))
    for reason in damaged:
        print(f"not known whether it needs healing: {escaped(reason)}", file=sys.stderr)
    if damaged:
        raise typer.Exit(EXIT_ERROR)


def prepare(
    names: Annotated[list[str] | None, typer.Argument(help="hosts; all that the file names by default")] = None,
    ssh_config: SshConfigOption = None,
    hosts: HostsOption = None,
    known_hosts: Annotated[
        Path | None, typer.Option(help="file that records the hosts' keys  [default: ~/.config/stormproof/known_hosts]")
    ] = None,
    accept_host_key: Annotated[
        bool, typer.Option("--accept-host-key", help="record the keys of hosts that have no recorded key")
    ] = False,
    system: Annotated[
        list[str] | None,
        typer.Option(help="install what this system needs there, too (its Debian packages); may be repeated"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="answer all other questions with yes")] = False,
) -> None:
    """Permit faults on hosts: record their keys, install what a node needs, and set a marker, each after a question.

    Without the marker /etc/stormproof/may-be-broken `stormproof test --backend ssh` touches no host.
    """
    from harness.backends.ssh.hosts import absolute
    from harness.backends.ssh.prepare import prepare as prepare_hosts
    from nodes.systems.catalog import SYSTEMS

    packages = sorted({package for name in system or () for package in SYSTEMS.load(name).packages})
    given = {"ssh_config": ssh_config, "hosts": hosts, "known_hosts": known_hosts}
    prepare_hosts(
        absolute({name: str(path) for name, path in given.items() if path}),
        names or [],
        ask=lambda question: yes or _confirmed(question),
        accept_key=lambda question: accept_host_key or _confirmed(question),
        tell=print,
        packages=packages,
    )


def _confirmed(question: str) -> bool:
    """Ask for confirmation. Return False without a terminal."""
    return sys.stdin.isatty() and typer.confirm(question)


def recover(
    runs: Annotated[list[str] | None, typer.Argument(help="runs to recover; all unfinished ones by default")] = None,
    store: StoreOption = DEFAULT_STORE,
    max_history: MaxHistoryOption = None,
) -> None:
    """Seal the unfinished history of a dead harness, so that it can be checked."""
    from harness.run.healing import NOT_RECOVERED, recover_store

    set_max_history(max_history)
    lines = recover_store(store, runs or [])
    failed = [line for line in lines if line.startswith(NOT_RECOVERED)]
    for line in lines:
        print(escaped(line), file=sys.stderr if line in failed else sys.stdout)
    if not lines:
        print("nothing to recover")
    if failed:
        raise typer.Exit(EXIT_ERROR)


def broker(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="with --descriptor: id of the server, folder for its data, id of the replica"),
    ] = None,
    design: Annotated[str, typer.Option(help="a design that needs no other nodes")] = "standalone",
    data: Annotated[Path, typer.Option(help="folder for its database")] = Path("broker-data"),
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=1, max=65535)] = 61613,
    login: Annotated[str, typer.Option(help="user name that clients give")] = "guest",
    passcode: Annotated[
        str, typer.Option(envvar="STORMPROOF_PASSCODE", help="password that clients give", show_default=False)
    ] = "guest",
    descriptor: Annotated[
        Path | None, typer.Option(help="XML descriptor of servers and clusters (a3servers.xml), instead of the above")
    ] = None,
    nb_cluster_expected: Annotated[
        int | None, typer.Option(help="replicas that must have joined before a cluster starts  [default: all]")
    ] = None,
    join: Annotated[
        bool,
        typer.Option("--join", help="the replica is added to a running cluster; `stormproof admin joram add-replica`"),
    ] = False,
    secret_file: Annotated[
        Path | None, typer.Option(help="file with the secret that all servers share; with --descriptor")
    ] = None,
) -> None:
    """Run one reference broker on this machine, for any STOMP 1.2 client.

    With --descriptor it is one machine of that file, named by HA Joram's starting parameters:

    stormproof broker --descriptor a3servers.xml --nb-cluster-expected 3 0 s0 1
    """
    from harness.reference.broker_command import run_described, run_single

    if descriptor is not None:
        for name in ("design", "data", "host", "port", "login", "passcode"):
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--{name} does not go with --descriptor, which sets it")
        raise typer.Exit(run_described(descriptor, arguments or [], nb_cluster_expected, join, secret_file))
    if arguments or nb_cluster_expected is not None or join or secret_file is not None:
        raise UsageError("a server, a replica, --nb-cluster-expected, --join and --secret-file need a --descriptor")
    raise typer.Exit(run_single(design, data, host, port, login, passcode))


def doctor(
    systems: Annotated[
        list[str] | None, typer.Argument(help="systems of your own to show, too, as FILE.py:CLASS")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the abilities of this machine, and for each missing one the command that adds it."""
    from harness.backends.probe import choose_backend, probe_all
    from harness.run import plugins

    plugins.load_installed()
    for name in systems or []:
        plugins.resolve(plugins.SYSTEM, name)
    capabilities = probe_all()
    try:
        chosen, why = choose_backend(None)
    except BackendError as error:
        chosen, why = None, str(error)
    if as_json:
        print_json({"backend": chosen, "why": why, "capabilities": [vars(item) for item in capabilities]})
        return
    table = Table("", "", Column(overflow="fold"), box=None, show_header=False, padding=(0, 1))
    for item in capabilities:
        mark = "[green]yes[/]" if item.available else "[red]no[/]"
        mend = f"\n-> {item.mend}" if item.mend else ""
        table.add_row(mark, item.name, escape(item.detail + mend))
    console().print(table)
    print(f"backend: {chosen or 'none'}: {why}")
