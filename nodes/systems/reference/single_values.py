"""The reference designs' guarantees on registers, and on locks that are made of a queue or a register.

A lock of a queue is a message that is with one consumer at a time. A lease is a register whose holder has a time limit.
Every lease has a number that is larger than all before it (a fencing token); with it, the resource that the lock guards
can refuse former holders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stormproof.contracts.guarantee import ANY_FAULT, KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee

REGISTER, FENCING, LOCK_LOST = "register", "fencing", "lock-lost"
EXCLUSION, LOST_UPDATE = "mutual-exclusion", "lost-update"
NAMES = (REGISTER, EXCLUSION, LOST_UPDATE, FENCING, LOCK_LOST)
"""All guarantees on registers and locks."""
OF_QUEUE, OF_LEASE = {"guard": "queue"}, {"guard": "lease"}
_STALLING, _FENCED = {"holders": "stalling"}, {**OF_LEASE, "refuse_old_tokens": True}
_LEARNS_TOO_LATE = "a holder that stands still learns too late that the lock is somebody else's"
_REFUSED = "what the lock guards refuses a token that is older than one that it has seen"
_NUMBERED = "a lease's number is one more than that of the lease before, and set with it"
_NOT_FOR_EVER = "a token whose holder is gone comes back to its queue, and a lease ends"


def promises(register: str, token: str, exclusion: str) -> tuple[Guarantee, ...]:
    """Return the guarantees that apply unless an earlier entry contradicts them.

    Args:
        register: why registers are linearizable.
        token: why a token has one holder at a time, or why it may have two; ``exclusion`` is the status of that
            guarantee.
    """
    lock = () if exclusion == PROMISED else tuple(
        Guarantee(name, exclusion, "ours", token, ANY_FAULT, OF_QUEUE) for name in (EXCLUSION, LOST_UPDATE))
    return (
        Guarantee(EXCLUSION, NOT_PROMISED, "ours", _LEARNS_TOO_LATE, mode={**_STALLING, **_FENCED}),
        Guarantee(LOST_UPDATE, PROMISED, "ours", _REFUSED, mode=_FENCED),
        *(Guarantee(name, KNOWN_VIOLATION, "ours", _LEARNS_TOO_LATE, mode=_STALLING)
          for name in (EXCLUSION, LOST_UPDATE)),
        *lock,
        *(Guarantee(name, PROMISED, "ours", token, mode=OF_QUEUE) for name in (EXCLUSION, LOST_UPDATE)),
        *(Guarantee(name, PROMISED, "ours", "a lease is a register, and ends for its holder before it ends for others")
          for name in (EXCLUSION, LOST_UPDATE)),
        Guarantee(REGISTER, PROMISED, "ours", register),
        Guarantee(FENCING, PROMISED, "ours", _NUMBERED),
        Guarantee(LOCK_LOST, PROMISED, "ours", _NOT_FOR_EVER),
    )  # fmt: skip


def all_of(status: str, where: str, why: str, faults: Iterable[str] = (),
           mode: Mapping[str, object] | None = None) -> tuple[Guarantee, ...]:
    """Return one statement for all of these guarantees."""
    return tuple(Guarantee(name, status, where, why, tuple(faults), mode or {}) for name in NAMES)


def of_token(status: str, where: str, why: str, faults: Iterable[str] = (),
             mode: Mapping[str, object] | None = None) -> tuple[Guarantee, ...]:
    """Return one statement for a lock that is a message in a queue: whether it has one holder at a time."""
    return tuple(Guarantee(name, status, where, why, tuple(faults), {**OF_QUEUE, **(mode or {})})
                 for name in (EXCLUSION, LOST_UPDATE))
