"""Commands that run tests: one, many seeds, known bugs, demonstrations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.backends.catalog import BACKENDS
from harness.cli.common import (
    DEFAULT_STORE,
    FILE_HELP,
    MASTER_HELP,
    SET_HELP,
    AttachOption,
    HostsOption,
    JsonOption,
    JunitOption,
    MarkdownOption,
    OnInvalidOption,
    SparkEnvOption,
    SshConfigOption,
    StoreOption,
    WebhookOption,
    choices,
)
from harness.cli.composed import (
    ClientOption,
    ComposeOption,
    EnvFileOption,
    ProfileOption,
    ReplicasOption,
    TestCommandsOption,
    composed,
    system_of_client,
)
from harness.cli.configured import ConfigOption, SettingsOption
from harness.cli.kept import KEEP, KEEP_HELP
from harness.cli.output import print_answer, teller
from harness.run import plugins
from harness.run.progress import console
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import EXIT_INVALID, EXIT_VALID, UsageError
from workloads.catalog import ALIASES as WORKLOAD_ALIASES
from workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from harness.sim.campaign import Seeded

SYSTEM_HELP = f"system under test: {choices(SYSTEMS)}, {FILE_HELP}  [default: joram]"
WORKLOAD_HELP = f"what clients do: {choices(WORKLOADS)}, {FILE_HELP}  [default: queue]"
NEMESIS_HELP = f"faults, joined by commas, or none: {choices(FAULTS)}, {FILE_HELP}  [default: partition]"
BACKEND_HELP = f"where nodes run: {choices(BACKENDS)}  [default: the strongest that works here]"
SIMULATED_NEMESIS_HELP = (
    f"faults, joined by commas, or none: {choices(FAULTS)}; may be repeated  [default: partition,pause,kill]"
)
DESCRIPTOR_HELP = "XML descriptor of clusters (a3servers.xml), with the number of replicas and their settings"
CHECK_HELP = "an additional check, FILE.py:CLASS or the name of an installed one; may be repeated"
BUG_HELP = "a bug of the broker to switch on; may be repeated; `stormproof list bugs` names them"
SYSTEM_NAMES = ("--system", "--design")
TIME_LIMIT, RATE = 30.0, 17.0
"""The values of a simulated run, unless they are drawn."""


def test(
    system: Annotated[str | None, typer.Option(*SYSTEM_NAMES, help=SYSTEM_HELP)] = None,
    workload: Annotated[str | None, typer.Option(help=WORKLOAD_HELP)] = None,
    nemesis: Annotated[str | None, typer.Option(help=NEMESIS_HELP)] = None,
    check: Annotated[list[str] | None, typer.Option(help=CHECK_HELP)] = None,
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    ssh_config: SshConfigOption = None,
    hosts: HostsOption = None,
    attach: AttachOption = None,
    compose: ComposeOption = None,
    profile: ProfileOption = None,
    env_file: EnvFileOption = None,
    replicas: ReplicasOption = None,
    client: ClientOption = None,
    test_commands: TestCommandsOption = None,
    nodes: Annotated[int | None, typer.Option(help="number of nodes  [default: 3]")] = None,
    descriptor: Annotated[Path | None, typer.Option(help=DESCRIPTOR_HELP)] = None,
    time_limit: Annotated[float, typer.Option(help="seconds of load and faults")] = 30.0,
    rate: Annotated[float, typer.Option(help="operations a second, all clients")] = 200.0,
    seed: Annotated[int | None, typer.Option(help="seed of values, faults and times  [default: fresh]")] = None,
    store: StoreOption = DEFAULT_STORE,
    settings: SettingsOption = None,
    bug: Annotated[list[str] | None, typer.Option(help=BUG_HELP)] = None,
    config: ConfigOption = None,
    repeat: Annotated[int | None, typer.Option(help="number of runs; the number that failed is reported")] = None,
    seeds: Annotated[str | None, typer.Option(help="run the test with each of these seeds, as 1-20 or 1-5,9")] = None,
    master: Annotated[str, typer.Option(help=f"{MASTER_HELP}, for the checks")] = "local[*]",
    spark_env: SparkEnvOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    on_invalid: OnInvalidOption = "",
    webhook: WebhookOption = "",
    keep_nodes: Annotated[str, typer.Option(KEEP, help=KEEP_HELP, show_default=False)] = "never",
    as_json: JsonOption = False,
) -> None:
    """Run one test: start a cluster, load it, break it, heal it, check what clients saw, write a report.

    The same seed plans the same load and faults again, on every backend. Examples:

    stormproof test --nemesis partition,pause,kill --time-limit 60

    stormproof test --set partitions=unspecified --set partition_kind=master --set fault_duration=6

    stormproof test --system ./mine.py:MyBroker --nemesis kill --rate 1000 --json

    stormproof test --compose compose.yml --replicas kafka-1,kafka-2,kafka-3 --client kafka --nemesis partition,kill

    stormproof test --compose compose.yml --test-commands workload --nemesis kill
    """
    from checkers.spark.masters import ship_environment
    from harness.api import plan
    from harness.cli.outcomes import Outcomes
    from harness.nightly.notify import Notify
    from harness.run import plugins
    from harness.run.kept_nodes import check_keeping
    from harness.run.repeat import check_repeat, repeat_tests, run_noted
    from harness.run.settings import parse_assignments
    from stormproof.text import seeds_of

    if seeds is not None and (seed is not None or repeat is not None):
        raise UsageError("--seeds goes neither with --seed nor with --repeat")
    ship_environment(spark_env)
    several = [] if seeds is None else seeds_of(seeds)
    outcomes = Outcomes(junit, markdown, Notify(on_invalid, webhook))
    given = parse_assignments(settings or []) | ({"bug": ",".join(bug)} if bug else {})
    files = {"ssh_config": ssh_config, "hosts": hosts}
    given |= {name: str(path) for name, path in files.items() if path}
    wanted = backend or ("ssh" if any(files.values()) else None)
    if attach is not None:
        wanted, nodes, nemesis = _attached(attach, any(files.values()), backend, nodes, nemesis)
        given |= {"attach": attach}
    if (compose or client or replicas) and (system is not None or descriptor is not None):
        raise UsageError("--compose and --client name the system; leave out --system and --descriptor")
    if compose:
        if attach is not None or nodes is not None or backend not in (None, "compose"):
            raise UsageError("--compose sets the nodes; leave out --attach, --nodes and --backend")
        found = composed(compose, profile, env_file, replicas, client, test_commands)
        system, wanted, given = found.system, "compose", {**found.given, **given}
        workload = workload or found.workload or None
    elif replicas or profile or env_file or test_commands:
        raise UsageError("--replicas, --profile, --env-file and --test-commands go with --compose")
    elif client:
        system, own = system_of_client(client)
        given = {**own, **given}
    for text in check or []:
        plugins.resolve(plugins.CHECK, text)
    tell = teller(as_json)
    chosen = _workload(workload or "queue")
    if descriptor is not None:
        system, nodes, given = _described(descriptor, chosen, system, nodes, given, tell)
    planned, why = plan(
        system=system or "joram", workload=chosen,
        nemesis="partition" if nemesis is None else nemesis, backend=wanted, nodes=nodes, time_limit=time_limit,
        rate=rate, seed=several[0] if several else seed, settings=given,
    )  # fmt: skip
    if repeat is not None:
        check_repeat(planned, repeat)
    check_keeping(keep_nodes, planned.backend, several=repeat is not None or bool(several))
    told = f"seeds {seeds}" if several else f"seed {planned.seed}"
    tell(f"backend {planned.backend}: {why}; {told}")
    with outcomes:
        if repeat is not None or several:
            tests = [replace(planned, seed=each) for each in several] or [planned] * (repeat or 1)
            raise typer.Exit(repeat_tests(tests, why, store, master=master, as_json=as_json, outcomes=outcomes))
        result = run_noted(planned, why, store, outcomes, quiet=as_json, master=master, keep=keep_nodes)
    print_answer(as_json, result.to_json(), result.lines())
    raise typer.Exit(result.exit_code)


def _described(file: Path, workload: str, system: str | None, nodes: int | None, given: dict[str, str],
               tell: Callable[[str], None]) -> tuple[str, int, dict[str, str]]:
    """Return system, number of nodes and settings of a test from a descriptor. A person's settings take precedence."""
    from harness.reference.from_descriptor import described

    found = described(file, workload)
    if nodes is not None or system not in (None, found.system):
        raise UsageError("--descriptor sets the system and the number of nodes; leave out "
                         f"{'--nodes' if nodes is not None else '--system'}")
    for line in found.left_out:
        tell(f"{file}: {line}")
    return found.system, found.nodes, {**found.settings, **given}


def _attached(places: str, hosts: bool, backend: str | None, nodes: int | None, nemesis: str | None
              ) -> tuple[str, int, str | None]:
    """Return the backend, the number of nodes and the faults of a test of an already running system."""
    from harness.backends.attach import read_places

    count = len(read_places(places))
    if backend is not None or nodes not in (None, count):
        option = "--backend" if backend is not None else "--nodes"
        raise UsageError(f"--attach sets the nodes' addresses and their number; leave out {option}")
    return "attach-ssh" if hosts else "attach", count, nemesis if hosts or nemesis is not None else "none"


def _workload(text: str) -> str:
    from harness.run import plugins

    if text in WORKLOAD_ALIASES:
        print(f"stormproof: the workload {text!r} is called {WORKLOAD_ALIASES[text]!r} now", file=sys.stderr)
    return plugins.resolve(plugins.WORKLOAD, WORKLOAD_ALIASES.get(text, text))


def _each(texts: list[str]) -> list[str]:
    """Return the names of a repeatable option. Each text may hold several names, joined by commas."""
    return [name.strip() for text in texts for name in text.split(",")]


def simulate(
    seeds: Annotated[int, typer.Option(help="number of seeds")] = 100,
    start: Annotated[int, typer.Option(help="the first seed")] = 1,
    system: Annotated[
        list[str] | None, typer.Option(*SYSTEM_NAMES, help=SYSTEM_HELP + "; may be several")
    ] = None,
    workload: Annotated[list[str] | None, typer.Option(help=WORKLOAD_HELP + "; may be several")] = None,
    nemesis: Annotated[list[str] | None, typer.Option(help=SIMULATED_NEMESIS_HELP)] = None,
    check: Annotated[list[str] | None, typer.Option(help=CHECK_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help="number of nodes  [default: 3]")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help=f"simulated seconds of load and faults  [default: {TIME_LIMIT:g}]")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help=f"operations a simulated second, all clients  [default: {RATE:g}]")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    settings: SettingsOption = None,
    bug: Annotated[list[str] | None, typer.Option(help=BUG_HELP)] = None,
    config: ConfigOption = None,
    draw: Annotated[
        bool | None,
        typer.Option("--draw/--no-draw", help="each seed draws a separate test: all values that are not given, with "
                     "settings of system and clients  [default: where no workload, fault, number or setting is given]"),
    ] = None,
    guided: Annotated[
        bool,
        typer.Option("--guided", help="the default campaign, in which runs that reached states that no earlier run had "
                     "met are kept and varied"),
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="processes  [default: one for each core]")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="run seeds as Spark tasks; all runs are stored")] = False,
    master: Annotated[str | None, typer.Option(help=f"{MASTER_HELP}, with --spark  [default: local[*]]")] = None,
    spark_env: SparkEnvOption = None,
    collect: Annotated[bool, typer.Option("--collect", help="continue after a failure")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="reduce the first failure to a short scenario file")] = False,
    visits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a Markdown page of the states that were reached under "
                                  "each fault, and of those that never were")
    ] = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a test in simulation with many seeds; stop at the first failure and print the command that repeats it.

    Of several systems, workloads and nemeses every combination is run; those that can't be are listed and left out.
    Without any of these, or with --draw, it is the default campaign: workload, faults, number of nodes and settings are
    drawn anew for each seed; with --guided, runs that met something new are varied, too.
    """
    from checkers.spark.masters import ship_environment
    from harness.cli.outcomes import Outcomes
    from harness.run import plugins
    from harness.run.settings import parse_assignments
    from harness.sim.command import cases_of, drawn_cases, run_campaign
    from harness.sim.draw import Given

    outcomes = Outcomes(junit, markdown)
    for text in check or []:
        plugins.resolve(plugins.CHECK, text)
    systems = [plugins.resolve(plugins.SYSTEM, name) for name in _each(system or ["joram"])]
    workloads = [_workload(name) for name in _each(workload or [])]
    nemeses = [plugins.resolve_all(plugins.NEMESIS, names) for names in nemesis or []]
    assigned = parse_assignments(settings or []) | ({"bug": ",".join(bug)} if bug else {})
    if guided and (draw is False or spark):
        raise UsageError("--guided varies the tests of the default campaign: leave --no-draw and --spark out")
    if visits is not None:
        if spark:
            raise UsageError("--visits: leave --spark out, whose runs are not read for it")
        if not visits.parent.is_dir():
            raise UsageError(f"--visits {visits}: there is no folder {visits.parent}")
    draw = True if guided else draw
    if draw is None:
        draw = not (workloads or nemeses or settings or nodes is not None or time_limit is not None or rate is not None)
    cases: Sequence[Seeded]
    left_out: list[str] = []
    if draw:
        cases = drawn_cases(systems, Given(tuple(workloads), tuple(nemeses), nodes, time_limit, rate, assigned))
    else:
        cases, left_out = cases_of(
            systems, workloads or ["queue"], nemeses or ["partition,pause,kill"], nodes=nodes,
            time_limit=TIME_LIMIT if time_limit is None else time_limit, rate=RATE if rate is None else rate,
            settings=assigned,
        )
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if (master or spark_env) and not spark:
        raise UsageError(f"--{'master' if master else 'spark-env'} needs --spark")
    ship_environment(spark_env)
    if jobs is not None and spark:
        raise UsageError("--jobs does not go with --spark; say --master 'local[N]'")
    with outcomes:
        status = run_campaign(
            cases, start, seeds, store, jobs=jobs, master=(master or "local[*]") if spark else None, collect=collect,
            shrinking=shrink, as_json=as_json, left_out=left_out, outcomes=outcomes, guided=guided, visits=visits,
        )  # fmt: skip
    raise typer.Exit(status)


def mutants(
    bugs: Annotated[
        list[str] | None, typer.Argument(help="bugs to hunt for, or ids of generated mutants; all by default")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="maximum number of seeds to try for each bug  [default: 300; 100 for generated mutants]"),
    ] = None,
    start: Annotated[int, typer.Option(help="the first seed")] = 1,
    exercise: Annotated[
        bool,
        typer.Option("--exercise", help="hunt by the test that exercises each bug (`stormproof list bugs`), and by the "
                     "checks of histories alone, rather than by the default campaign"),
    ] = False,
    guided: Annotated[
        bool, typer.Option("--guided", help="hunt by the search of `simulate --guided`; --seeds then counts runs")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="hunt for each bug by drawn and by guided tests, and compare both")
    ] = False,
    rounds: Annotated[int, typer.Option(help="number of hunts for each bug, each with different seeds")] = 1,
    generated: Annotated[
        int | None, typer.Option(metavar="N", help="hunt for so many mutants of the broker's source, made by rule and "
                                 "drawn by --seed over the lines that default campaigns execute")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the seed that draws generated mutants  [default: 1]")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(*SYSTEM_NAMES, help="design that generated mutants change; may be repeated  [default: all]"),
    ] = None,
    lists: Annotated[
        Path | None,
        typer.Option(help="folder of the drawn lists and of equivalent.toml  [default: docs/mutants]"),
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list-only", help="show the lists of generated mutants, drawn and written where they are "
                           "absent, and run nothing")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="write a page of the generated mutants to this file")] = None,
    store: StoreOption = DEFAULT_STORE,
    jobs: Annotated[int | None, typer.Option(help="processes  [default: one for each core]", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Switch on each known bug of the broker and simulate until a check catches it; status 1 when one escapes.

    With --generated, the bugs are mutations of the broker's source. Results are kept in the store, and running the
    command again goes on where it ended. They belong to one version of the source: any change of code starts anew.
    """
    from harness.reference.mutants import DRAWN, EXERCISE, GUIDED, run_mutants

    if generated is not None:
        from harness.mutation.command import SYSTEMS as MUTATED
        from harness.mutation.command import Order, run_generated
        from harness.mutation.drawing import LISTS

        if exercise or guided or compare or rounds != 1:
            raise UsageError("--exercise, --guided, --compare and --rounds do not go with --generated")
        systems = tuple(dict.fromkeys(_each(system))) if system else MUTATED
        order = Order(systems, generated, 1 if seed is None else seed, start, 100 if seeds is None else seeds, jobs,
                      lists or LISTS, store, tuple(bugs or ()))
        raise typer.Exit(run_generated(order, list_only=list_only, page=page, as_json=as_json))
    if seed is not None or system or lists or list_only or page:
        raise UsageError("--seed, --system, --lists, --list-only and --page need --generated N")
    if exercise + guided + compare > 1:
        raise UsageError("--exercise, --guided and --compare are three ways to hunt: give one of them")
    ways = (DRAWN, GUIDED) if compare else (GUIDED if guided else EXERCISE if exercise else DRAWN,)
    budget = 300 if seeds is None else seeds
    status = run_mutants(bugs or [], start=start, budget=budget, rounds=rounds, jobs=jobs, as_json=as_json, ways=ways)
    raise typer.Exit(status)


def guarantees(
    system: Annotated[
        list[str] | None, typer.Option(*SYSTEM_NAMES, help="system; all that have modes by default")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="folder whose runs are counted")] = None,
    seeds: Annotated[int, typer.Option(help="simulate each mode with this number of seeds instead")] = 0,
    jobs: Annotated[int, typer.Option(help="processes for the simulation", min=1)] = 1,
    page: Annotated[Path | None, typer.Option(help="write the page to this file, not to the terminal; with --system, "
                                              "the sections of other systems are preserved")] = None,
    by: Annotated[list[str] | None, typer.Option(help="for a system without modes: a setting of the workload that "
                                                 "makes rows, too; may be repeated")] = None,
    reports: Annotated[bool, typer.Option("--reports", help="for a system without modes: copy the report of each "
                                          "broken cell's witness beside the page, and link to it")] = False,
) -> None:
    """Compare a system's guarantees in each mode with the observations in a store's runs, or in simulated ones.

    For a system without modes, show what held and what broke in the store's runs, setting by fault.

    Status 1 when something that is promised was violated.
    """
    from harness.analysis.guarantee_matrix import compare, modes_of, read_store, simulate_modes, systems_compared
    from harness.analysis.guarantee_matrix import page as make_page
    from stormproof.contracts.guarantee import PROMISED

    if (store is None) == (seeds < 1):
        raise UsageError("no runs: give --store FOLDER, or --seeds NUMBER to simulate them")
    systems = [plugins.resolve(plugins.SYSTEM, name) for name in dict.fromkeys(system or systems_compared())]
    # Validate before the long work begins.
    if store is not None and not store.is_dir():
        raise UsageError(f"--store {store}: no such folder")
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise UsageError(f"--page {page}: not a file in a folder that is there")
    if len(systems) == 1 and store is not None and not SYSTEMS.load(systems[0]).modes:
        raise typer.Exit(_of_settings(systems[0], store, page, by or [], reports))
    if by or reports:
        raise UsageError(f"--{'by' if by else 'reports'}: only for one system without modes, and with --store")
    for name in systems:
        modes_of(name)
    kept = page if system and page is not None and page.exists() else None
    _sections_on(kept)
    report = console(errors=True).print
    if store is not None:
        sections = {name: read_store(name, store) for name in systems}
    else:
        sections = {name: simulate_modes(name, range(1, seeds + 1), jobs, report) for name in systems}
    text = make_page(sections, _sections_on(kept))
    if page is not None:
        page.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    lines = [line for name, findings in sections.items() for line in compare(name, findings)]
    raise typer.Exit(1 if any(line.status == PROMISED and line.seen.violated for line in lines) else 0)


def _of_settings(system: str, store: Path, page: Path | None, by: Sequence[str], reports: bool) -> int:
    """Print or write the page of a system without modes; return the exit status."""
    from harness.analysis.broker_page import broker_page, is_broker_page

    if reports and page is None:
        raise UsageError("--reports: they lie beside a page: give --page FILE, too")
    if page is not None and page.exists() and not is_broker_page(page):
        raise UsageError(f"--page {page}: is there already, and no page of this kind: remove it, or name another file")
    text, broken = broker_page(system, store, by, page.with_suffix("") if page is not None and reports else None)
    if page is not None:
        page.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return EXIT_INVALID if broken else EXIT_VALID


def _sections_on(page: Path | None) -> dict[str, str]:
    """Return the systems' sections on a page of guarantees; an empty mapping without a page. Raises UsageError for any
    other page."""
    from harness.analysis.guarantee_matrix import sections_of

    if page is None:
        return {}
    try:
        return sections_of(page.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"--page {page}: {error}") from error


def demo(
    name: Annotated[str, typer.Argument(help="name of the demonstration; `stormproof demo list` lists them")] = "split",
    seed: Annotated[int, typer.Option(help="seed of the first pair of runs")] = 7,
    seeds: Annotated[int, typer.Option(help="number of pairs, with consecutive seeds", min=1)] = 1,
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    store: StoreOption = DEFAULT_STORE,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    slower: Annotated[float, typer.Option(help="stretch all times, for slow machines", min=1)] = 1.0,
    summary: Annotated[Path | None, typer.Option(help="write a table of all pairs to this Markdown file")] = None,
) -> None:
    """Run the same faults twice, under an unsafe and under a safe setting, and compare the verdicts."""
    from harness.run.settings import parse_assignments
    from harness.tools.demo import DEMOS, run_demo

    if name == "list":
        for known in DEMOS.values():
            print(f"{known.name:16} {known.summary}")
        return
    if name not in DEMOS:
        raise UsageError(f"unknown demonstration {name!r} (known: {', '.join(DEMOS)})")
    given = parse_assignments(settings or [])
    raise typer.Exit(run_demo(DEMOS[name], seed, seeds, backend, store, given, slower, summary))
