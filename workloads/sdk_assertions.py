"""The output of Antithesis's SDK: assertions, and the message that a system's setup is complete.

One JSON object a line (https://antithesis.com/docs/using_antithesis/sdk/fallback/schema/). An assertion is declared
once with ``hit: false``, and reported with ``hit: true`` when the program reaches it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ALWAYS, SOMETIMES, REACHABILITY = "always", "sometimes", "reachability"
MOST = 5000
"""The number of assertions that a run's description keeps: it is read as a whole."""
_TEXT = 500
_SETUP, _ASSERTION = "antithesis_setup", "antithesis_assert"


@dataclass
class Assertion:
    """An assertion and its results in one run. ``kind`` is the SDK's name for it, as *AlwaysOrUnreachable*."""

    id: str
    message: str
    type: str
    kind: str
    must_hit: bool
    location: str
    services: list[str] = field(default_factory=list)
    hits: int = 0
    passes: int = 0
    fails: int = 0
    details: str = ""
    """The details of the first failure, as JSON."""


class SdkReader:
    """The content of SDK output, line by line."""

    def __init__(self) -> None:
        self.setup = ""
        """The service that said that the setup is complete."""
        self.unreadable = 0
        """Lines that are neither a JSON object nor a valid assertion."""
        self.left_out = 0
        """Assertions beyond ``MOST``."""
        self._found: dict[str, Assertion] = {}

    def take(self, service: str, line: str) -> None:
        """Read one line of a service's output."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            self.unreadable += 1
            return
        if isinstance(setup := said.get(_SETUP), dict) and setup.get("status") == "complete":
            self.setup = self.setup or service
        if _ASSERTION in said:
            self._assertion(service, said[_ASSERTION])

    def _assertion(self, service: str, said: Any) -> None:
        if not isinstance(said, dict) or said.get("assert_type") not in (ALWAYS, SOMETIMES, REACHABILITY) or not (
                isinstance(said.get("hit"), bool) and isinstance(said.get("condition"), bool)):  # fmt: skip
            self.unreadable += 1
            return
        message = str(said.get("message") or said.get("id") or "")
        ident = str(said.get("id") or message)
        found = self._found.get(ident)
        if found is None:
            if len(self._found) >= MOST:
                self.left_out += 1
                return
            kind = str(said.get("display_type") or said["assert_type"])
            found = self._found[ident] = Assertion(
                ident[:_TEXT], message[:_TEXT], said["assert_type"], kind[:_TEXT], bool(said.get("must_hit")),
                _place(said.get("location")))  # fmt: skip
        if service not in found.services:
            found.services.append(service)
        if not said["hit"]:
            return
        found.hits += 1
        if said["condition"]:
            found.passes += 1
        else:
            if not found.fails:
                found.details = json.dumps(said.get("details"), default=str)[:_TEXT]
            found.fails += 1

    def found(self) -> list[dict[str, Any]]:
        """Return all assertions as plain data."""
        return [asdict(each) for each in self._found.values()]


def _place(said: Any) -> str:
    if not isinstance(said, Mapping):
        return ""
    file, line, function = (str(said.get(name) or "") for name in ("file", "begin_line", "function"))
    return " ".join(filter(None, (f"{file}:{line}" if file and line else file, function)))[:_TEXT]
