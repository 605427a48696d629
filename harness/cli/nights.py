"""Commands about nights: a matrix of tests that runs unattended, and its kinds of failure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import (
    DEFAULT_STORE,
    MASTER_HELP,
    JsonOption,
    JunitOption,
    MarkdownOption,
    OnInvalidOption,
    SparkEnvOption,
    StoreOption,
    WebhookOption,
)
from stormproof.errors import UsageError

KnownOption = Annotated[
    Path | None, typer.Option(help="TOML file of failures that are known  [default: known.toml beside FILE, if any]")
]

OwnSystemOption = Annotated[
    list[str] | None, typer.Option("--system", metavar="FILE:CLASS", help="a system of your own, so that the pages "
                                   "show its guarantees; may be repeated")
]


def _load(systems: list[str] | None) -> None:
    """Load the named systems, and all that are installed."""
    from harness.run import plugins

    plugins.load_installed()
    for name in systems or []:
        plugins.resolve(plugins.SYSTEM, name)


def nightly(
    file: Annotated[Path, typer.Argument(help="TOML file: [defaults] and [[case]]; docs/nights.md lists the keys")],
    tag: Annotated[str, typer.Option(help="text to store with the night, as build=1234")] = "",
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="time limit of the night, as 2h or 90m")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="start a new night even after an interrupted one")] = False,
    confirm: Annotated[int, typer.Option(help="number of times to repeat each new kind of failure")] = 0,
    known: KnownOption = None,
    jobs: Annotated[int | None, typer.Option(help="processes for simulation  [default: one for each core]")] = None,
    master: Annotated[str | None, typer.Option(help=f"{MASTER_HELP}, for simulation and checks")] = None,
    spark_env: SparkEnvOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    on_invalid: OnInvalidOption = "",
    webhook: WebhookOption = "",
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Run a matrix of tests, and report new kinds of failure. An interrupted night continues where it stopped.

    Exit status: 0 nothing new; 1 something new, or a twin that did not fail, or a known failure that is overdue;
    2 nothing new, but some runs are unknown.
    """
    from checkers.spark.masters import ship_environment
    from harness.cli.outcomes import Outcomes
    from harness.nightly.command import run_nightly
    from harness.nightly.notify import Notify
    from stormproof.retention import read_age

    if master is not None and jobs is not None:
        raise UsageError("--jobs does not go with --master; say --master 'local[N]'")
    ship_environment(spark_env)
    notify = Notify(on_invalid, webhook)
    seconds = None if budget is None else read_age(budget, "--budget")
    with Outcomes(junit, markdown) as outcomes:
        raise typer.Exit(run_nightly(file, store, budget=seconds, tag=tag, fresh=fresh, jobs=jobs, confirm=confirm,
                                     known=known, outcomes=outcomes, notify=notify, as_json=as_json,
                                     master=master))


def triage(
    night: Annotated[str | None, typer.Option(help="a night's id, a unique beginning of it, or `latest`")] = None,
    known: KnownOption = None,
    system: OwnSystemOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show the kinds of failure of a night, or of all nights: how often, since when, an example."""
    from harness.nightly.command import run_triage

    _load(system)
    raise typer.Exit(run_triage(store, night, known, as_json))


def trend(
    nights: Annotated[int, typer.Option(help="number of latest nights to include")] = 60,
    known: KnownOption = None,
    system: OwnSystemOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Report changes over nights, and write the pages over the store: trends, guarantee matrix, kinds of failure."""
    from harness.nightly.command import run_trend

    _load(system)
    raise typer.Exit(run_trend(store, nights, known, as_json))
