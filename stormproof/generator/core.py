"""The generator protocol, the context in which a generator decides, and pure randomness.

After Jepsen's generators: a generator is an immutable value. Asked for an operation, it answers with the operation and
the following generator; told of an event, it answers with the following generator. Because nothing is modified in
place, a generator can be asked and its answer discarded, run in virtual time, stored, and restarted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from stormproof.errors import StormproofError, errors_of_others
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op
from stormproof.test import Test

SLEEP = "sleep"
"""Type of an operation that keeps one thread busy for ``value`` seconds; it is not recorded."""
LOG = "log"
"""Type of an operation that writes ``value`` to the log; it is not recorded."""

INVOCATION_TYPES = (INVOKE, INFO, SLEEP, LOG)
COMPLETION_TYPES = (OK, FAIL, INFO)

SECOND = 1_000_000_000
"""Nanoseconds in a second: contexts and operations count nanoseconds, users give seconds."""

NEMESIS_MASK = 1
CLIENTS_MASK = ~1


class GeneratorError(StormproofError):
    """A generator broke its contract or failed; the message names it and the time."""


class Pending(NamedTuple):
    """No operation is due; ask again after an event, or at ``wake`` (nanoseconds) if that is known."""

    wake: int | None = None


PENDING = Pending()


def thread_bit(thread: int) -> int:
    """Return a thread's bit in a context's masks: the nemesis is bit 0, client t is bit t + 1."""
    return 1 << (thread + 1)


def threads_mask(threads: Iterable[int]) -> int:
    """Return the mask of a set of threads."""
    mask = 0
    for thread in threads:
        mask |= thread_bit(thread)
    return mask


class Context(NamedTuple):
    """The information on which a generator may base its decision.

    ``time`` is nanoseconds since the start of the run. ``threads`` and ``free`` are bit masks (see ``thread_bit``) of
    all threads that this generator may use, and of the idle ones. ``processes[t]`` is the current process of client
    thread t. ``turn`` is the bit position at which the round-robin over free threads continues, so all threads get
    their share. ``overtime``: the load continues beyond the test's time limit.
    """

    time: int
    free: int
    threads: int
    processes: tuple[int, ...]
    turn: int = 0
    overtime: bool = False

    @classmethod
    def initial(cls, concurrency: int, time: int = 0) -> Context:
        """Return the context of ``concurrency`` idle client threads and the idle nemesis; thread t plays process t."""
        mask = (1 << (concurrency + 1)) - 1
        return cls(time, mask, mask, tuple(range(concurrency)), 1)

    def thread_of(self, process: int) -> int:
        """Return the thread of a present or past process: process numbers are renewed in steps of the concurrency."""
        return NEMESIS if process < 0 else process % len(self.processes)

    def bit_of(self, process: int) -> int:
        """Return the bit of the thread of a present or past process."""
        return NEMESIS_MASK if process < 0 else 2 << process % len(self.processes)

    def process_of(self, thread: int) -> int:
        """Return the current process of a thread."""
        return NEMESIS if thread < 0 else self.processes[thread]

    def next_bit(self) -> int:
        """Return the bit position of the free thread whose turn it is; there must be one."""
        candidates = (self.free >> self.turn << self.turn) or self.free
        return (candidates & -candidates).bit_length() - 1

    def free_bits(self) -> list[int]:
        """Return the bit positions of the free threads, beginning with the one whose turn it is."""
        ahead = self.free >> self.turn << self.turn
        return [*_bits(ahead), *_bits(self.free ^ ahead)]

    def restrict(self, mask: int) -> Context:
        """Return the same moment for a generator that may use only the threads in ``mask``."""
        return Context(self.time, self.free & mask, self.threads & mask, self.processes, self.turn, self.overtime)

    def at(self, time: int) -> Context:
        """Return the same context at another time."""
        return Context(time, self.free, self.threads, self.processes, self.turn, self.overtime)

    def in_overtime(self) -> Context:
        """Return the same moment for a load that continues beyond the test's time limit."""
        return Context(self.time, self.free, self.threads, self.processes, self.turn, True)

    def busy(self, thread: int) -> Context:
        """Return the context after ``thread`` took an operation; it is the next thread's turn."""
        bit = thread + 1
        return Context(self.time, self.free & ~(1 << bit), self.threads, self.processes, bit + 1)

    def freed(self, thread: int) -> Context:
        """Return the context after ``thread`` completed its operation."""
        return Context(self.time, self.free | thread_bit(thread), self.threads, self.processes, self.turn)

    def renewed(self, thread: int) -> Context:
        """Return the context after the process of a client thread crashed and a new one took its place."""
        fresh = self.processes[thread] + len(self.processes)
        processes = (*self.processes[:thread], fresh, *self.processes[thread + 1 :])
        return Context(self.time, self.free, self.threads, processes, self.turn)

    def fill(self, template: Op) -> Op:
        """Return the operation for the free thread whose turn it is, stamped with the time."""
        process = self.process_of(self.next_bit() - 1)
        return Op(template[0], template[1], template[2], template[3], process, self.time, template[6])


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


Answer: TypeAlias = "tuple[Op | Pending, Generator | None] | None"
"""None: exhausted. (Pending, g): nothing now, ask g later. (Op, g): do it, then g (None: that was the last)."""


class Generator:
    """Base of all generators; subclasses are immutable."""

    __slots__ = ()

    def op(self, test: Test, ctx: Context) -> Answer:
        """Return the operation to do now, and the following generator. Must be pure: the answer may be discarded."""
        raise NotImplementedError

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        """Return the generator that follows an event: an invocation that was carried out, or a completion.

        ``ctx`` already shows the thread busy or free again, and a crashed process not yet renewed.
        """
        return self


Source: TypeAlias = "Generator | Op | Callable[..., Any] | Iterable[Any] | None"
"""The inputs that combinators accept: see ``lift``."""


def earliest(a: Pending | None, b: Pending) -> Pending:
    """Return the pending answer that wakes first; an unknown wake time never hides a known one."""
    if a is None or a.wake is None:
        return b
    if b.wake is None:
        return a
    return a if a.wake <= b.wake else b


class Seed(NamedTuple):
    """A random source as a value (splitmix64, Steele, Lea & Flood, OOPSLA 2014): a draw returns a new source."""

    state: int

    @classmethod
    def of(cls, rng: random.Random) -> Seed:
        """Return a source that depends on the next 64 bits of ``rng``."""
        return cls(rng.getrandbits(64))

    def bits(self) -> tuple[int, Seed]:
        """Return 64 random bits, and the new source."""
        state = (self.state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return z ^ (z >> 31), Seed(state)

    def below(self, n: int) -> tuple[int, Seed]:
        """Return a number in 0 .. n - 1, and the new source (n is far below 2**32, so the bias of the multiplication
        does not matter).
        """
        bits, rest = self.bits()
        return (bits >> 32) * n >> 32, rest


def describe(generator: object) -> str:
    """Describe a generator in at most 300 characters, for error messages."""
    try:
        text = repr(generator)
    except Exception as error:  # a broken __repr__ must not hide the reported error
        text = f"<{type(generator).__name__}, whose repr fails: {error}>"
    return text if len(text) <= 300 else text[:297] + "..."


def ask(generator: Generator, test: Test, ctx: Context) -> Answer:
    """Return the checked answer of ``generator.op``.

    Raises:
        GeneratorError: it failed, or its answer can't be carried out.
    """
    try:
        answer = generator.op(test, ctx)
    except StormproofError:
        raise
    except errors_of_others() as error:
        raise GeneratorError(
            f"generator failed when asked for an operation at {ctx.time / SECOND:.3f} s: "
            f"{type(error).__name__}: {error}; generator: {describe(generator)}"
        ) from error
    if answer is None:
        return None
    problem = _problem(answer, ctx)
    if problem:
        raise GeneratorError(
            f"generator answered wrongly at {ctx.time / SECOND:.3f} s: {problem}; generator: {describe(generator)}"
        )
    return answer


def tell(generator: Generator, test: Test, ctx: Context, event: Op) -> Generator:
    """Return the result of ``generator.update``, with failures and answers checked as in ``ask``."""
    try:
        following = generator.update(test, ctx, event)
    except StormproofError:
        raise
    except errors_of_others() as error:
        raise GeneratorError(
            f"generator failed when told of {event}: {type(error).__name__}: {error}; generator: {describe(generator)}"
        ) from error
    if not isinstance(following, Generator):
        raise GeneratorError(f"update answered {describe(following)}, not a generator: {describe(generator)}")
    return following


def _problem(answer: object, ctx: Context) -> str | None:
    if type(answer) is not tuple or len(answer) != 2:
        return f"{describe(answer)} is neither None nor (operation or pending, next generator)"
    op, following = answer
    if following is not None and not isinstance(following, Generator):
        return f"what follows is {describe(following)}, not a generator (wrap it in lift)"
    if isinstance(op, Pending):
        return "a pending answer must say which generator to ask again" if following is None else None
    if not isinstance(op, Op):
        return f"{describe(op)} is not an operation"
    if op.type not in INVOCATION_TYPES:
        return f"type {op.type!r} of {op} is not one of {', '.join(INVOCATION_TYPES)}"
    if type(op.f) is not str:
        return f"f of {op} must be a string"
    return _process_problem(op, ctx)


def _process_problem(op: Op, ctx: Context) -> str | None:
    thread = ctx.thread_of(op.process)
    if not ctx.threads & thread_bit(thread):
        return f"process {op.process} of {op} has no thread here"
    if not ctx.free & thread_bit(thread):
        return f"process {op.process} of {op} is busy"
    if ctx.process_of(thread) != op.process:
        return f"process {op.process} of {op} is gone; its thread plays {ctx.process_of(thread)} now"
    return None
