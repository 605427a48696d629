"""The command ``stormproof``."""

from __future__ import annotations

import json
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.table import Column, Table

from harness import admin
from harness.errors import EXIT_ERROR, StormproofError, UsageError
from harness.progress import console
from harness.registry import BACKENDS, DESIGNS, NEMESES, WORKLOADS, Registry

DEFAULT_STORE = Path("runs")

app = typer.Typer(
    help="""Find out whether a message broker keeps its promises when networks split, nodes pause and processes die.

    Start with: stormproof test --design joram --workload queue --nemesis partition

    Exit status: 0 valid, 1 invalid, 2 unknown, 3 bad input or a failure of the harness, 130 interrupted.
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(admin.app, name="admin", short_help="Look after running brokers: replicas, topics, subscribers.")

StoreOption = Annotated[Path, typer.Option("--store", help="folder that holds the runs")]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else on standard output")]


SshConfigOption = Annotated[
    Path | None, typer.Option("--ssh-config", help="hosts for backend ssh, as `vagrant ssh-config` prints them")
]
HostsOption = Annotated[
    Path | None, typer.Option("--hosts", help="hosts for backend ssh: NAME USER@ADDRESS[:PORT] [key=PATH] a line")
]
RunsArgument = Annotated[
    list[str] | None, typer.Argument(help="run ids, unique beginnings of them, folders, or `latest`")
]


def _choices(registry: Registry) -> str:
    return ", ".join(registry.names())


DESIGN_HELP = f"broker design: {_choices(DESIGNS)}  [default: joram]"
WORKLOAD_HELP = f"what clients do: {_choices(WORKLOADS)}  [default: queue]"
NEMESIS_HELP = f"faults, joined by commas, or none: {_choices(NEMESES)}  [default: partition]"
BACKEND_HELP = f"where nodes run: {_choices(BACKENDS)}  [default: the strongest that works here]"
SIMULATED_NEMESIS_HELP = (
    f"faults, joined by commas, or none: {_choices(NEMESES)}; may be repeated  [default: partition,pause,kill]"
)
BUG_HELP = "a bug of the broker to switch on; may be repeated; `stormproof list bugs` names them"
LIST_HELP = "designs, workloads, nemeses, checks, backends, bugs, states or all"
SET_HELP = "name=value of design, workload or nemesis; `stormproof list` shows them"


@app.command(short_help="Run one test, from the cluster's start to the report.")
def test(
    design: Annotated[str | None, typer.Option(help=DESIGN_HELP)] = None,
    workload: Annotated[str | None, typer.Option(help=WORKLOAD_HELP)] = None,
    nemesis: Annotated[str | None, typer.Option(help=NEMESIS_HELP)] = None,
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    ssh_config: SshConfigOption = None,
    hosts: HostsOption = None,
    nodes: Annotated[int | None, typer.Option(help="number of nodes  [default: 3]")] = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds of load and faults  [default: 30]")] = None,
    rate: Annotated[float | None, typer.Option(help="operations a second, all clients  [default: 200]")] = None,
    seed: Annotated[int | None, typer.Option(help="repeats values, faults and times  [default: fresh]")] = None,
    store: Annotated[Path | None, typer.Option(help="folder that holds the runs  [default: runs]")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    bug: Annotated[list[str] | None, typer.Option(help=BUG_HELP)] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of these options; the command line wins")] = None,
    repeat: Annotated[int | None, typer.Option(help="run it so many times and tell how many runs failed")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one test: start a cluster, load it, break it, heal it, check what clients saw, write a report.

    The same seed plans the same load and faults again, on every backend. Examples:

    stormproof test --nemesis partition,pause,kill --time-limit 60

    stormproof test --set partitions=unspecified --set partition_kind=master --set fault_duration=6

    stormproof test --design standalone --nemesis kill --rate 1000 --json
    """
    from harness.backends.probe import choose_backend
    from harness.repeat import check_repeat, repeat_test
    from harness.run import run_test
    from harness.settings import make_test, parse_assignments, read_config
    from nemesis.api import supported_families

    file = read_config(config) if config else {}

    def pick(name: str, given: Any, default: Any) -> Any:
        return given if given is not None else file.get(name, default)

    given = {str(key).replace("-", "_"): value for key, value in file.get("set", {}).items()}
    given |= parse_assignments(settings or []) | ({"bug": ",".join(bug)} if bug else {})
    files = {"ssh_config": pick("ssh-config", ssh_config, None), "hosts": pick("hosts", hosts, None)}
    given |= {name: str(path) for name, path in files.items() if path}
    wanted = pick("backend", backend, "ssh" if any(files.values()) else None)
    if wanted:
        BACKENDS.entry(wanted)
    if wanted == "ssh":
        from harness.backends.ssh.hosts import absolute

        given = absolute(given)
    draft = {
        "design": pick("design", design, "joram"),
        "workload": pick("workload", workload, "queue"),
        "nemesis": pick("nemesis", nemesis, "partition"),
        "nodes": pick("nodes", nodes, None),
        "time_limit": pick("time-limit", time_limit, 30.0),
        "rate": pick("rate", rate, 200.0),
        "seed": pick("seed", seed, random.SystemRandom().randrange(1, 10**6)),
        "settings": given,
    }
    make_test(backend=wanted or "local", **draft)  # complain about a typing error before probing the machine
    chosen, why = choose_backend(wanted)
    plan = make_test(backend=chosen, **draft)
    supported_families(BACKENDS.load(chosen), plan)  # complain about a fault that it can't inject before making a run
    if repeat is not None:
        check_repeat(plan, repeat)
    print(f"backend {chosen}: {why}; seed {plan.seed}", file=sys.stderr if as_json else sys.stdout, flush=True)
    place = Path(pick("store", store, DEFAULT_STORE))
    if repeat is not None:
        raise typer.Exit(repeat_test(plan, why, place, repeat, as_json=as_json))
    outcome = run_test(plan, why, place, quiet=as_json)
    if as_json:
        print(json.dumps(outcome.to_json()))
    else:
        for line in outcome.lines():
            print(line)
    raise typer.Exit(outcome.exit_code)


@app.command(short_help="Run a test in simulation with many seeds.")
def simulate(
    seeds: Annotated[int, typer.Option(help="number of seeds")] = 100,
    start: Annotated[int, typer.Option(help="the first seed")] = 1,
    design: Annotated[list[str] | None, typer.Option(help=DESIGN_HELP + "; may be repeated")] = None,
    workload: Annotated[list[str] | None, typer.Option(help=WORKLOAD_HELP + "; may be repeated")] = None,
    nemesis: Annotated[list[str] | None, typer.Option(help=SIMULATED_NEMESIS_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help="number of nodes  [default: 3]")] = None,
    time_limit: Annotated[float, typer.Option(help="simulated seconds of load and faults")] = 30.0,
    rate: Annotated[float, typer.Option(help="operations a simulated second, all clients")] = 17.0,
    store: StoreOption = DEFAULT_STORE,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    bug: Annotated[list[str] | None, typer.Option(help=BUG_HELP)] = None,
    jobs: Annotated[int | None, typer.Option(help="processes  [default: one for each core]")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="run seeds as Spark tasks; all runs are stored")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master, with --spark  [default: local[*]]")] = None,
    collect: Annotated[bool, typer.Option("--collect", help="go on after a failure")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="reduce the first failure to a short scenario file")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a test in simulation with many seeds; stop at the first failure and tell the command that repeats it."""
    from harness.settings import parse_assignments
    from harness.sim.command import plans_of, run_campaign

    plans = plans_of(
        design or ["joram"],
        workload or ["queue"],
        nemesis or ["partition,pause,kill"],
        nodes=nodes,
        time_limit=time_limit,
        rate=rate,
        settings=parse_assignments(settings or []) | ({"bug": ",".join(bug)} if bug else {}),
    )
    if master and not spark:
        raise UsageError("--master needs --spark")
    if jobs is not None and spark:
        raise UsageError("--jobs does not go with --spark; say --master 'local[N]'")
    status = run_campaign(
        plans, start, seeds, store, jobs=jobs, master=(master or "local[*]") if spark else None, collect=collect,
        shrinking=shrink, as_json=as_json,
    )
    raise typer.Exit(status)


@app.command(short_help="Switch on known bugs of the broker and see which check catches them.")
def mutants(
    bugs: Annotated[list[str] | None, typer.Argument(help="bugs to hunt for; all by default")] = None,
    seeds: Annotated[int, typer.Option(help="most seeds to try for each")] = 100,
    start: Annotated[int, typer.Option(help="the first seed")] = 1,
    rounds: Annotated[int, typer.Option(help="hunts for each bug, with seeds of their own")] = 1,
    jobs: Annotated[int | None, typer.Option(help="processes  [default: one for each core]", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Switch on each known bug of the broker and simulate until a check catches it; status 1 when one escapes."""
    from harness.sim.mutants import run_mutants

    raise typer.Exit(run_mutants(bugs or [], start=start, budget=seeds, rounds=rounds, jobs=jobs, as_json=as_json))


@app.command(short_help="What a design promises, beside what runs have shown.")
def promises(
    design: Annotated[list[str] | None, typer.Option(help="broker design; all that have modes by default")] = None,
    store: Annotated[Path | None, typer.Option(help="folder whose runs are counted")] = None,
    seeds: Annotated[int, typer.Option(help="simulate each mode with so many seeds instead")] = 0,
    jobs: Annotated[int, typer.Option(help="processes for the simulation", min=1)] = 1,
    page: Annotated[Path | None, typer.Option(help="write the page to this file, not to the terminal")] = None,
) -> None:
    """Compare what a design promises in each mode with what a store's runs, or simulated ones, have shown.

    Status 1 when something that is promised was broken.
    """
    from harness.promises import compare, designs_compared, modes_of, read_store, simulate_modes
    from harness.promises import page as make_page
    from nodes.reference.promises import KEPT

    if (store is None) == (seeds < 1):
        raise UsageError("say where runs come from: --store FOLDER, or --seeds NUMBER to simulate them")
    designs = list(dict.fromkeys(design or designs_compared()))
    for name in designs:
        modes_of(name)
    # Before what may take long.
    if store is not None and not store.is_dir():
        raise UsageError(f"--store {store}: there is no such folder")
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise UsageError(f"--page {page}: not a file in a folder that is there")
    report = console(errors=True).print
    if store is not None:
        sections = {name: read_store(name, store) for name in designs}
    else:
        sections = {name: simulate_modes(name, range(1, seeds + 1), jobs, report) for name in designs}
    text = make_page(sections)
    if page is not None:
        page.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    lines = [line for name, evidence in sections.items() for line in compare(name, evidence)]
    raise typer.Exit(1 if any(line.standing == KEPT and line.seen.broken for line in lines) else 0)


@app.command(short_help="Check recorded runs again with PySpark.")
def check(
    runs: RunsArgument = None,
    all_runs: Annotated[bool, typer.Option("--all", help="every run in the store")] = False,
    store: StoreOption = DEFAULT_STORE,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Check recorded runs again with PySpark and store their verdicts."""
    from harness.recheck import check_stored

    if bool(runs) == all_runs:
        raise UsageError("check what? name runs, or say --all")
    raise typer.Exit(check_stored(store, runs or [], master=master, as_json=as_json))


@app.command("list", short_help="Show every name and setting that can be used.")
def list_names(
    kind: Annotated[str, typer.Argument(help=LIST_HELP)] = "all",
    as_json: JsonOption = False,
) -> None:
    """Show what can be named: designs, workloads, nemeses, checks, backends, and the options of each."""
    from harness.listing import listing

    data = listing(kind)
    if as_json:
        print(json.dumps(data))
        return
    to = console()
    for title, entries in data.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
        for entry in entries:
            table.add_row(entry["name"], entry["summary"])
            for option in entry["options"]:
                choices = f" ({'|'.join(option['choices'])})" if option["choices"] else ""
                table.add_row("", escape(f"--set {option['name']}={option['default']}{choices}: {option['help']}"))
        to.print(table)


@app.command(short_help="Write reports and the index again.")
def report(
    runs: RunsArgument = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write the HTML report of runs (the latest by default) and the index over the store again."""
    from harness.store import Store
    from reports.index_page import write_index
    from reports.run_page import write_report

    runs_of = Store(store)
    for name in runs or ["latest"]:
        print(write_report(runs_of.resolve(name)))
    print(write_index(store))


@app.command(short_help="Serve index and reports on loopback.")
def serve(
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=0, max=65535)] = 8642,
) -> None:
    """Serve the index and the reports over HTTP, on loopback unless told otherwise."""
    from reports.server import serve as serve_store

    serve_store(store, host, port)


@app.command(short_help="Undo what a killed harness left behind.")
def heal(store: StoreOption = DEFAULT_STORE) -> None:
    """Undo what a dead harness left behind: faults, containers, networks, processes, scratch folders."""
    from harness.healing import heal_store

    lines = heal_store(store)
    for line in lines:
        print(line)
    if not lines:
        print("nothing to heal")


@app.command(short_help="Say that hosts may be broken, for backend ssh.")
def prepare(
    names: Annotated[list[str] | None, typer.Argument(help="hosts; all that the file names by default")] = None,
    ssh_config: SshConfigOption = None,
    hosts: HostsOption = None,
    known_hosts: Annotated[
        Path | None, typer.Option(help="file of the hosts' keys  [default: ~/.config/stormproof/known_hosts]")
    ] = None,
    accept_host_key: Annotated[
        bool, typer.Option("--accept-host-key", help="note the keys of hosts that are seen for the first time")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="answer all other questions with yes")] = False,
) -> None:
    """Let hosts be broken: note their keys, install what a node needs, and put a marker there, each after a question.

    Without the marker /etc/stormproof/may-be-broken `stormproof test --backend ssh` touches no host.
    """
    from harness.backends.ssh.hosts import absolute
    from harness.backends.ssh.prepare import prepare as prepare_hosts

    given = {"ssh_config": ssh_config, "hosts": hosts, "known_hosts": known_hosts}
    prepare_hosts(
        absolute({name: str(path) for name, path in given.items() if path}),
        names or [],
        ask=lambda question: yes or _confirmed(question),
        accept_key=lambda question: accept_host_key or _confirmed(question),
        tell=print,
    )


def _confirmed(question: str) -> bool:
    """Whether a person says yes; nobody there is no."""
    return sys.stdin.isatty() and typer.confirm(question)


@app.command(short_help="Seal the history that a killed harness left.")
def recover(
    runs: Annotated[list[str] | None, typer.Argument(help="runs to recover; all unfinished ones by default")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Seal the history that a dead harness left, so that it can be checked."""
    from harness.healing import recover_store

    lines = recover_store(store, runs or [])
    for line in lines:
        print(line)
    if not lines:
        print("nothing to recover")


@app.command(short_help="Run one reference broker, for any STOMP client.")
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
        bool, typer.Option("--join", help="the replica is added to a cluster that runs; `stormproof admin add-replica`")
    ] = False,
    secret_file: Annotated[
        Path | None, typer.Option(help="holds what all servers share to be let in by each other; with --descriptor")
    ] = None,
) -> None:
    """Run one reference broker on this machine, for any STOMP 1.2 client.

    With --descriptor it is one machine of that file, named by HA Joram's starting parameters:

    stormproof broker --descriptor a3servers.xml --nb-cluster-expected 3 0 s0 1
    """
    from harness.single import run_described, run_single

    if descriptor is not None:
        for name in ("design", "data", "host", "port", "login", "passcode"):
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--{name} does not go with --descriptor, which says that itself")
        raise typer.Exit(run_described(descriptor, arguments or [], nb_cluster_expected, join, secret_file))
    if arguments or nb_cluster_expected is not None or join or secret_file is not None:
        raise UsageError("a server, a replica, --nb-cluster-expected, --join and --secret-file need a --descriptor")
    raise typer.Exit(run_single(design, data, host, port, login, passcode))


@app.command(short_help="Show what this machine can do.")
def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine can do, and the command that would mend what it can't."""
    from harness.backends.probe import choose_backend, probe_all

    capabilities = probe_all()
    chosen, why = choose_backend(None)
    if as_json:
        print(json.dumps({"backend": chosen, "why": why, "capabilities": [vars(item) for item in capabilities]}))
        return
    table = Table("", "", Column(overflow="fold"), box=None, show_header=False, padding=(0, 1))
    for item in capabilities:
        mark = "[green]yes[/]" if item.available else "[red]no[/]"
        mend = f"\n-> {item.mend}" if item.mend and not item.available else ""
        table.add_row(mark, item.name, escape(item.detail + mend))
    console().print(table)
    print(f"backend: {chosen}: {why}")


def _one_line(message: str) -> str:
    return " ".join(message.split())


def main() -> NoReturn:
    """Entry point of ``stormproof``."""
    run_app(app)


def run_app(application: typer.Typer) -> NoReturn:
    """Run a command line: a person's mistakes end in one line and status 3, Ctrl-C in status 130."""

    def terminate(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        code = application(standalone_mode=False) or 0
    except typer.Exit as stop:
        code = stop.exit_code
    except StormproofError as error:
        print(f"stormproof: {_one_line(str(error))}", file=sys.stderr)
        code = EXIT_ERROR
    except KeyboardInterrupt:
        print("stormproof: interrupted", file=sys.stderr)
        code = 130
    except SystemExit as stop:
        if stop.code != EXIT_ERROR:  # click's and rich's answer to EPIPE is status 1, which would read as "invalid"
            print("stormproof: standard output was closed before the end", file=sys.stderr)
        code = EXIT_ERROR
    except typer.Abort:
        code = EXIT_ERROR
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            code = EXIT_ERROR
        elif type(error).__module__.startswith(("click", "typer")) and hasattr(error, "format_message"):
            print(f"stormproof: {_one_line(error.format_message())} (see --help)", file=sys.stderr)
            code = EXIT_ERROR
        elif isinstance(error, OSError):
            print(f"stormproof: {_one_line(str(error))}", file=sys.stderr)
            code = EXIT_ERROR
        else:
            # Status 1 would read as "invalid".
            traceback.print_exc()
            print("stormproof: a defect in the harness; please report the lines above", file=sys.stderr)
            code = EXIT_ERROR
    sys.exit(code)
