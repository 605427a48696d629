"""Assembles a page: templates, styles and scripts in one file that sends no network requests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports.narrative import plain
from reports.pack import inert_json
from stormproof.errors import HistoryError

HERE = Path(__file__).parent


def render(template: str, styles: Sequence[str], scripts: Sequence[str], data: Any, context: Mapping[str, Any],
           *, loads: bool = False) -> str:
    """Return a whole page. ``styles`` and ``scripts`` name files of ``static/``, inlined in this order.

    The page's content security policy allows exactly these two blocks, by hash, and nothing else; if it ``loads`` data,
    also scripts from its own origin. ``data`` reaches the scripts as inert JSON; ``context`` reaches the template,
    which escapes it.
    """
    style = _joined(styles)
    script = "(() => {\n'use strict';\n" + _joined(scripts) + "})();\n"
    allowed = f"{_hash(script)} 'self'" if loads else _hash(script)
    policy = f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            policy=policy,
            style=Markup(style),  # own files, and hashed
            script=Markup(script),
            data=Markup(inert_json(data)),
        )
    )


def write_page(path: Path, text: str) -> Path:
    """Put a page in place atomically: a reader sees the old one or the new one, never a part.

    Raises:
        HistoryError: the file can't be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".page-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            os.chmod(temporary, 0o644)  # noqa: PTH101
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise HistoryError(f"{path}: can't write the report ({error.strerror or error})") from error
    return path


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain
    environment.filters["seconds"] = seconds
    return environment


def seconds(value: float | None) -> str:
    """Return seconds for a table: ``12.345 s``, or a dash."""
    return "—" if value is None else f"{value:,.3f}\N{NO-BREAK SPACE}s"


def _joined(names: Sequence[str]) -> str:
    return "".join((HERE / "static" / name).read_text(encoding="utf-8") + "\n" for name in names)


def _hash(block: str) -> str:
    digest = hashlib.sha256(block.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
