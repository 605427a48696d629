"""Notification of a person about a bad result: by the user's command, or by a POST to the user's address."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stormproof.errors import UsageError

_PREFIX = "STORMPROOF_"
_SECONDS = 60.0
"""Seconds for a command, or for an answer."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: notifications are sent only to the named address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""


@dataclass(frozen=True)
class Notify:
    """The recipients of a notification about an invalid run, or about a night with new results. Empty texts mean none.

    ``command`` is split into words as a shell would do it, and run without a shell. The content is in its environment
    (``STORMPROOF_VERDICT``, ``STORMPROOF_SENTENCE``...) and, as a JSON object, on its standard input. ``webhook`` gets
    the same object. Trouble with either is reported on standard error and changes no verdict.
    """

    command: str = ""
    webhook: str = ""

    def __post_init__(self) -> None:
        """Validate both; raises UsageError before any test is run."""
        try:
            if self.command and not shlex.split(self.command):
                raise ValueError("it names no command")
        except ValueError as error:
            raise UsageError(f"--on-invalid {self.command}: {error}") from None
        if self.webhook:
            try:
                parts = urlsplit(self.webhook)
                fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                fine = False
            if not fine:
                raise UsageError(f"--webhook {self.webhook}: write an address as https://host/path")

    def tell(self, content: Mapping[str, Any]) -> None:
        """Send the content to all recipients."""
        body = json.dumps(content, default=str).encode()
        if self.command:
            self._run(content, body)
        if self.webhook:
            self._post(body)

    def _run(self, content: Mapping[str, Any], body: bytes) -> None:
        # An environment variable can't hold a NUL, and the kernel refuses one of more than 128 KiB.
        told = {f"{_PREFIX}{name.upper()}": str(value).replace("\0", "")[:10_000] for name, value in content.items()
                if isinstance(value, (str, int, float))}
        try:
            done = subprocess.run(shlex.split(self.command), input=body, env={**os.environ, **told}, check=False,
                                  stdout=sys.stderr, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"stormproof: --on-invalid: {error}", file=sys.stderr)
            return
        if done.returncode:
            print(f"stormproof: --on-invalid: the command ended with status {done.returncode}", file=sys.stderr)

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(self.webhook, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=_SECONDS):
                pass
        except (OSError, ValueError, urllib.error.HTTPError) as error:
            # The address may hold a secret, so it is not printed.
            reason = error.reason if isinstance(error, urllib.error.URLError) else type(error).__name__
            print(f"stormproof: --webhook: not told: {reason}", file=sys.stderr)
