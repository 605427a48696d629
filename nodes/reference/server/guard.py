"""Passcodes: their replacement before anything is stored or sent on, and their verification.

The broker that receives a passcode replaces it by its salted hash (scrypt); no command, log or store holds it.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from nodes.reference.api import Command, ConfigError
from nodes.reference.engine.security import HASH_BYTES, MOST_COST, SALT_BYTES, WITH_PASSCODE, Security, is_cost

DEFAULT_COST = 1 << 12
_SCRYPT_BLOCK_SIZE = 8
_SCRYPT_MEMORY_BYTES = 64 << 20
MAX_CHECKS_A_SECOND = 20
"""Maximum number of passcodes hashed in a second: guesses must not take the processor from logged-in clients."""
_MAX_REMEMBERED_LOGINS = 1_000
"""Maximum number of logins whose last right passcode is recognised without hashing it."""


class TooManyPasscodes(Exception):
    """The limit of passcodes hashed in a second is reached, so this one has to wait."""

    def __init__(self) -> None:
        super().__init__("too many passcodes just now; try again in a second")


class Guard:
    """Checks passcodes against the principals of ``security``; ``now`` returns monotonic seconds.

    Raises:
        ConfigError: the option ``passcode_cost`` makes no sense.
    """

    def __init__(self, security: Security, options: Mapping[str, Any], source: random.Random,
                 now: Callable[[], float]) -> None:
        self._security, self._source, self._now = security, source, now
        cost = options.get("passcode_cost", DEFAULT_COST)
        if type(cost) is not int or not is_cost(cost):
            raise ConfigError(f"options.passcode_cost: {cost!r} is not a power of 2 from 2 to {MOST_COST}")
        if not isinstance(options.get("security", False), bool):
            raise ConfigError("options.security: is neither true nor false")
        self._cost = cost
        self._key = b""
        self._known: dict[str, tuple[int, bytes]] = {}
        """Login -> its principal, and a keyed digest of the passcode that it has shown."""
        self._window, self._checks = 0.0, 0
        self._lately: deque[float] = deque(maxlen=MAX_CHECKS_A_SECOND)
        self.refused_idle: list[float] = []
        """Times when a passcode had to wait although the second before was below the limit, which never happens."""

    @property
    def enabled(self) -> bool:
        """Whether there are principals at all."""
        return self._security.enabled

    def identify(self, login: str, passcode: str) -> int:
        """Return the identity of the principal with this login and passcode; 0 when there is none.

        Raises:
            TooManyPasscodes: it has to wait.
        """
        if not self._key:
            self._key = self._source.randbytes(HASH_BYTES)
        principal = self._security.principal(login)
        digest = hmac.digest(self._key, passcode.encode(), "sha256")
        identity, shown = self._known.get(login, (0, b""))
        if principal is not None and principal.id == identity and hmac.compare_digest(shown, digest):
            return identity
        self._count()
        # An unknown login takes as long as a wrong passcode.
        salt, cost = (principal.salt, principal.cost) if principal is not None else (bytes(SALT_BYTES), self._cost)
        found = hashed(passcode, salt, cost)
        if principal is None or not hmac.compare_digest(found, principal.verifier):
            return 0
        self._known.pop(login, None)
        self._known[login] = principal.id, digest
        if len(self._known) > _MAX_REMEMBERED_LOGINS:
            del self._known[next(iter(self._known))]
        return principal.id

    def _count(self) -> None:
        now = self._now()
        if now - self._window >= 1:
            self._window, self._checks = now, 0
        if self._checks >= MAX_CHECKS_A_SECOND:
            if len(self._lately) < MAX_CHECKS_A_SECOND or now - self._lately[0] > 1:
                self.refused_idle.append(now)
            raise TooManyPasscodes
        self._checks += 1
        self._lately.append(now)

    def sealed(self, command: Command) -> Command:
        """Return a client's command with its passcode replaced. Raises TooManyPasscodes."""
        if command.kind != "security":
            return command
        said = dict(command.args["said"])
        passcode = said.pop("passcode", None)
        if command.args["request"] in WITH_PASSCODE and passcode:
            self._count()
            salt = self._source.randbytes(SALT_BYTES)
            said |= {"salt": salt, "verifier": hashed(passcode, salt, self._cost), "cost": self._cost}
        return command._replace(args={**command.args, "said": said})


def hashed(passcode: str, salt: bytes, cost: int) -> bytes:
    """Return a passcode's salted hash."""
    return hashlib.scrypt(passcode.encode(), salt=salt, n=cost, r=_SCRYPT_BLOCK_SIZE, p=1,
                          maxmem=_SCRYPT_MEMORY_BYTES, dklen=HASH_BYTES)
