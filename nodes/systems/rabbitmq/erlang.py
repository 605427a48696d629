"""Queries of RabbitMQ's nodes in Erlang, by ``erl_call``, which answers at once and does not hang.

Terms are built from names that tests give queues (letters, digits) and from fixed words.
"""

from __future__ import annotations

import re
import shlex

from stormproof.errors import BackendError
from stormproof.shell_system import Machine

COOKIE = "stormproof"
_OK = re.compile(r"\{ok, (.*)\}\s*\Z", re.DOTALL)


async def evaluate(machine: Machine, text: str, timeout: float = 8.0) -> str:
    """Evaluate an expression on a machine's node; return its value in Erlang's notation.

    Raises:
        BackendError: the node does not answer, or the expression failed.
    """
    # A dot and a new line end the input of `erl_call -e`.
    command = (f"printf '%s.\\n' {shlex.quote(text)} | HOME=. timeout {timeout:g} "
               f"erl_call -sname rabbit@{machine.name} -c {COOKIE} -e")  # fmt: skip
    told = await machine.run(command, timeout=timeout + 2)
    found = _OK.search(told)
    if found is None:
        raise BackendError(f"{machine.name}: {' '.join(told.split())[:300]}")
    return found[1].strip()


def name_term(queue: str) -> str:
    """Return an expression for a queue's name in the form of RabbitMQ's own functions."""
    return f'rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)'


def queue_term(queue: str) -> str:
    """Return an expression for a queue's record: ``{ok, Q}`` or an error."""
    return f"rabbit_amqqueue:lookup({name_term(queue)})"


def names_in(text: str) -> list[str]:
    """Return the nodes that a term names: ``['rabbit@n1','rabbit@n2']`` -> n1, n2."""
    return re.findall(r"rabbit@([A-Za-z0-9_-]+)", text)
