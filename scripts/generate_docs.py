"""Write what of docs/ is made from the code: all names with their settings, and the transitions of design fiorano."""

from __future__ import annotations

from pathlib import Path

from harness.listing import fault_matrix, listing
from nodes.systems.fiorano.diagram import with_transitions

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "names.md"
FIORANO = DOCS / "designs" / "fiorano.md"


def names_page() -> str:
    """The page's text."""
    lines = ["# Names and settings", "", "Made by `make docs` from the registries; `stormproof list` prints the same."]
    for kind, entries in listing("all").items():
        lines += ["", f"## {kind.capitalize()}"]
        for entry in entries:
            shown_by = f": `{entry['command']}`" if "command" in entry else ""
            lines += ["", f"**`{entry['name']}`** {entry['summary']}{shown_by}"]
            if entry["options"]:
                lines += ["", "| `--set` | default | meaning |", "| --- | --- | --- |"]
            for option in entry["options"]:
                named = ", ".join(f"`{choice}`" for choice in option["choices"])
                choices = f" One of {named}." if named else ""
                lines.append(f"| `{option['name']}` | `{option['default']}` | {option['help']}.{choices} |")
    lines += ["", "## Faults and backends", "", "A fault that is missing for a backend is refused there.", ""]
    lines += ["| fault | backend | how |", "| --- | --- | --- |"]
    lines += [f"| `{fault}` | `{backend}` | {how} |" for fault, backend, how in fault_matrix()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(names_page(), encoding="utf-8")
    FIORANO.write_text(with_transitions(FIORANO.read_text(encoding="utf-8")), encoding="utf-8")
