"""Commands about real systems: reproductions of their published misbehaviours."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import DEFAULT_STORE, JsonOption, StoreOption


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="reproductions, as redis-D1, or FILE.py:CLASS for "
                                                             "all of a system of your own; none: list them")] = None,
    everything: Annotated[bool, typer.Option("--all", help="run all reproductions")] = False,
    times: Annotated[int, typer.Option(help="runs of each arm")] = 1,
    arm: Annotated[list[str] | None, typer.Option(help="this arm only: fails, twin, ...; may be repeated")] = None,
    backend: Annotated[
        str | None, typer.Option(help="docker, local or ssh  [default: the strongest that works here]")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="record the results for docs/reference/reproductions.md; needs a checkout")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show published misbehaviours of real systems, and that their twins with safe settings pass under the same faults.

    Exit status: 0 as expected; 1 not as expected; 2 some twin is unknown; 3 bad input, or no run could be made.
    """
    from harness.reproductions.command import run_reproduce

    raise typer.Exit(run_reproduce(names or [], everything, times, arm or [], backend, store, record, as_json))
