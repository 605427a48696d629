"""The command that brings brokers."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from harness.cli.common import JsonOption
from harness.cli.output import print_answer, print_json
from harness.run.progress import console
from stormproof.errors import UsageError


def fetch(
    names: Annotated[list[str] | None, typer.Argument(help="brokers to bring; `stormproof fetch --list` names them")
                     ] = None,
    version: Annotated[str | None, typer.Option(help="another version than the pinned one; it has no checksums here")
                       ] = None,
    listing: Annotated[bool, typer.Option("--list", help="show what is there, how large, and what is missing")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a broker into the user's cache, by the client of its registry (mvn or go), for tests of it.

    stormproof fetch kafka

    stormproof fetch kafka --version 4.4.0

    The pinned version's checksums are part of Stormproof: files that differ are refused. A test of a system brings
    its broker itself. The folder is $XDG_CACHE_HOME/stormproof/brokers, or ~/.cache/stormproof/brokers.
    """
    from harness.run.fetch_progress import fetch_progress
    from stormproof.fetch.fetched import Fetched
    from stormproof.fetch.fetching import fetch as bring

    if listing:
        if names or version:
            raise UsageError("--list takes no names and no --version")
        _list(as_json)
        return
    if not names:
        raise UsageError("name a broker, or give --list")
    if version and len(names) > 1:
        raise UsageError("--version goes with one name")
    wanted = [Fetched(name, version or "") for name in names]
    results: list[dict[str, Any]] = []
    lines: list[str] = []
    for each in wanted:
        was_there = each.is_there()
        with fetch_progress(as_json) as (tell, show):
            bring(each, tell, show)
        results.append(_entry(each))
        pinned = "" if each.is_pinned else " (not pinned)"
        lines.append(f"{each}{pinned} {'was there already' if was_there else 'is there'}: {each.path}")
    print_answer(as_json, {"fetched": results}, lines)


def _list(as_json: bool) -> None:
    from stormproof.fetch.clients import CLIENTS, needed
    from stormproof.fetch.fetched import Fetched, versions_there
    from stormproof.fetch.recipes import recipe, recipes
    from stormproof.text import size

    found: list[dict[str, Any]] = []
    for each in recipes().values():
        pinned = [Fetched(each.name, version) for version in each.pinned_versions()]
        found += [_entry(one) for one in (*pinned, *(one for one in versions_there(each.name) if one not in pinned))]
    troubles: dict[tuple[str, tuple[int, ...]], str] = {}
    for entry in found:
        entry["trouble"] = ""
        if not entry["there"]:
            client = CLIENTS[entry["client"]]
            key = client.program, needed(recipe(entry["name"]), entry["version"])
            if key not in troubles:
                troubles[key] = client.trouble(key[1])
            entry["trouble"] = troubles[key] and f"{troubles[key]}; run: {client.install}"
    if as_json:
        print_json({"brokers": found})
        return
    table = Table("broker", "version", "by", "there", "what it is", box=None, header_style="", padding=(0, 2, 0, 0))
    for entry in found:
        state = size(entry["bytes"]) if entry["there"] else "missing"
        pinned_text = entry["version"] + ("" if entry["pinned"] else " (not pinned)")
        table.add_row(entry["name"], pinned_text, entry["client"], state, escape(entry["summary"]))
    console().print(table)
    for trouble in dict.fromkeys(entry["trouble"] for entry in found if entry["trouble"]):
        print(trouble)


def _entry(each: Any) -> dict[str, Any]:
    there = each.is_there()
    return {"name": each.name, "version": each.version, "client": each.recipe.client, "pinned": each.is_pinned,
            "there": there, "bytes": int(each.manifest().get("bytes", 0)) if there else 0,
            "path": str(each.path), "summary": each.recipe.summary}  # fmt: skip
