"""The login of a client: its CONNECT frame, the check of its passcode, and the answer."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from nodes.reference.api import Admission, Config
from nodes.reference.engine.limits import Limits
from nodes.reference.server import frames
from nodes.reference.server.frames import FrameError, Greeting
from nodes.reference.server.guard import Guard, TooManyPasscodes
from nodes.stomp import Frame, FrameLimits

HEART_BEAT_MS = 100
"""Shortest interval of heart-beats offered and requested, so that the client's preference decides."""


class LoginHost(Protocol):
    """The broker, as a login uses it."""

    config: Config
    guard: Guard

    def admission(self) -> Admission:
        """Return whether ordinary clients are admitted now."""
        ...


class Login:
    """The login of one session.

    ``greeting`` is the client's CONNECT frame, once login and passcode were right. ``principal`` is the principal that
    has logged in, 0 for the broker's own login.
    """

    def __init__(self, host: LoginHost) -> None:
        self._host = host
        self.greeting: Greeting | None = None
        self.principal = 0
        self._admission: Admission | None = None

    def check(self, frame: Frame) -> Greeting:
        """Check login and passcode of a CONNECT frame, and return what it says.

        Raises:
            FrameError: it is no CONNECT frame, or login and passcode are wrong.
        """
        greeting = frames.greeting(frame)
        config = self._host.config
        right = hmac.compare_digest(greeting.login.encode(), config.login.encode())
        right &= hmac.compare_digest(greeting.passcode.encode(), config.passcode.encode())
        if not right and self._host.guard.enabled and not greeting.admin:
            right = self._is_principal(greeting)
        if not right:
            raise FrameError("wrong login or passcode")
        self.greeting = greeting
        return greeting

    def admit(self) -> None:
        """Check that this node admits ordinary clients; raises FrameError when it does not."""
        admission = self._admission = self._host.admission()
        _demand(admission)

    def _is_principal(self, greeting: Greeting) -> bool:
        """Return whether login and passcode belong to a principal; only a serving node knows, and spends time on it."""
        _demand(self._host.admission())
        try:
            self.principal = self._host.guard.identify(greeting.login, greeting.passcode)
        except TooManyPasscodes as error:
            raise FrameError(str(error)) from None
        return self.principal > 0

    def answer(self, headers: Mapping[str, str]) -> Frame:
        """Return the CONNECTED frame, which has these headers as well."""
        answer = {"version": frames.VERSION, "server": frames.SERVER,
                  "heart-beat": f"{HEART_BEAT_MS},{HEART_BEAT_MS}", **headers}
        admission = self._admission or self._host.admission()
        listed = admission.replicas
        replicas = ",".join(self._host.config.client_addresses.values() if listed is None else listed)
        if replicas:
            answer["x-replicas"] = replicas
        if admission.early and self.greeting is not None and self.greeting.reliable and not self.greeting.admin:
            answer["x-early"] = "true"
        return Frame("CONNECTED", answer)


def login_limits(limits: Limits) -> FrameLimits:
    """Return the limits of frames before the login."""
    return FrameLimits(limits.max_login_bytes, limits.max_headers, limits.max_login_bytes)


def master_header(admission: Admission) -> dict[str, str]:
    """Return the header that names the master to a refused client."""
    return {} if admission.master is None else {"x-master": admission.master}


def _demand(admission: Admission) -> None:
    if not admission.accepted:
        raise FrameError(admission.reason or "not master", master_header(admission))
