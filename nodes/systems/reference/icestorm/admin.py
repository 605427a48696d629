"""Administrative commands of icestorm, as in ``icestormadmin``: replicas, topics, links, subscribers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nodes.reference.engine.topics import TOPIC_MANAGER
from nodes.stomp import ProtocolError
from nodes.systems.reference.asking import LOGIN_HINT, ask_status, connect
from nodes.systems.reference.icestorm.prompt import run_prompt
from stormproof.contracts.system import AdminAccess, AdminArgument, AdminCommand
from stormproof.errors import BackendError, UsageError

REQUEST_SECONDS = 30.0
"""The time limit of a request, which waits while the group elects a coordinator."""

_ERRORS = {
    "topic-exists": "there is a topic of that name already",
    "no-such-topic": "there is no such topic; `stormproof admin icestorm topic list` names all",
    "link-exists": "the topics are linked already",
    "link-to-itself": "a topic can't be linked to itself",
    "full": "there are as many topics, subscribers and links as a replica holds",
    "no-such-link": "the topics are not linked",
    "no-such-subscriber": "that subscriber is not subscribed",
    "already-subscribed": "that subscriber is subscribed already",
    "bad-name": "a name has 1 to 200 characters that can be printed, and no spaces",
    "bad-qos": "numbers are from 0 to 2147483647",
    "unknown": "the group lost its majority meanwhile: it may have been done or not; look, and try again",
}


def replica(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Print the state of every replica's election; a replica that does not answer is listed as unreachable."""
    yield from replica_lines(asyncio.run(_statuses(access)))


def replica_lines(statuses: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """Format the output of the command as in the documentation's example; a status of None means no answer."""
    lines = [f"replica count: {len(statuses)}"]
    for ident, status in sorted(statuses.items()):
        if status is None:
            lines += [f"{ident}: id:         {ident}", f"{ident}: state:      unreachable"]
            continue
        fields = {"id": ident, "coord": status["coord"], "group name": status["group"], "state": status["state"],
                  "group": ",".join(map(str, status["up"])), "max": status["max"]}  # fmt: skip
        lines += [f"{ident}: {name + ':':<11} {value}".rstrip() for name, value in fields.items()]
    return lines


async def _statuses(access: AdminAccess) -> dict[int, Mapping[str, Any] | None]:
    """Return the status of every replica that the one at ``server`` knows, by id."""
    first = await ask_status(access.server, access)
    if isinstance(first, str):
        raise BackendError(
            f"{access.server} does not answer: {first}; name a running replica with --server{LOGIN_HINT}"
        )
    if "coord" not in first:
        raise UsageError(f"{access.server} is of design {first['design']}, which has no such elections")
    addresses: Sequence[str] = first["addresses"]
    answers = await asyncio.gather(*(ask_status(address, access) for address in addresses))
    return {ident: None if isinstance(answer, str) else answer for ident, answer in enumerate(answers, 1)}


def _request(access: AdminAccess, request: str, **body: Any) -> Any:
    """Send a request to the topic manager, and return its answer.

    Raises:
        BackendError: no answer. UsageError: the request can't be carried out.
    """
    headers = _answered(access, request, body)
    answer = json.loads(headers["x-answer"])
    while "x-more" in headers:
        headers = _answered(access, request, {**body, "after": headers["x-more"]})
        answer += json.loads(headers["x-answer"])
    return answer


def _answered(access: AdminAccess, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the answer's headers for a request that was carried out; raises as ``_request`` does."""
    server = access.server
    try:
        headers = asyncio.run(_ask(access, request, body))
    except TimeoutError:
        raise BackendError(f"{server}: no answer within {REQUEST_SECONDS:g} s: replicas without a majority wait for"
                           f" one; see `stormproof admin icestorm replica --server {server}`") from None  # fmt: skip
    except (OSError, EOFError, ProtocolError) as error:
        why = str(error) or type(error).__name__
        raise BackendError(f"{server}: {why}; name a running replica with --server{LOGIN_HINT}") from None
    error_word = headers.get("x-error")
    if error_word is not None:
        subject = body.get("target") or body.get("subscriber") or body.get("topic", "")
        raise UsageError(f"{request} {subject:.60}: {_ERRORS.get(error_word, error_word)}")
    return headers


async def _ask(access: AdminAccess, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
    connection = connect(access, privileged=False)
    try:
        headers = {"destination": TOPIC_MANAGER, "x-request": request, "content-type": "application/json"}
        return await connection.request(headers, json.dumps(body).encode(), REQUEST_SECONDS)
    finally:
        connection.close()


def _changing(request: str, *names: str) -> Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]:
    """Return a command function for a request that has these arguments in its body and prints nothing."""

    def run(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
        _request(access, request, **{name: given[name] for name in names})
        yield from ()

    return run


def _each(request: str) -> Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]:
    def run(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
        for name in given["names"]:
            _request(access, request, topic=name)
        yield from ()

    return run


def list_topics(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """List all topics, or the links of one with their costs."""
    if not given["topic"]:
        yield from _request(access, "list")
        return
    for target, cost in _request(access, "links", topic=given["topic"]):
        yield f"{target} with cost {cost}"


def subscribers(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """List each subscriber with its endpoint and its quality of service."""
    for ident, endpoint, retries, reliability in _request(access, "subscribers", topic=given["topic"]):
        yield f"{ident} at {endpoint}: retryCount {retries}, reliability {reliability}"


_NAMES = AdminArgument("names", "names of topics", several=True)
_TOPIC, _TARGET = AdminArgument("topic", "name of a topic"), AdminArgument("target", "name of another topic")
_COST = AdminArgument("cost", "events that cost more stay; 0: none do", int, 0, required=False)

_COMMANDS = (
    AdminCommand("replica", "Print each replica's id, coordinator, group, state and the most replicas it has seen.",
                 replica),
    AdminCommand("topic create", "Make topics.", _each("create"), (_NAMES,)),
    AdminCommand("topic destroy", "End topics, with their subscriptions and links.", _each("destroy"), (_NAMES,)),
    AdminCommand("topic link", "Forward the events published on TOPIC to the subscribers of TARGET.",
                 _changing("link", "topic", "target", "cost"), (_TOPIC, _TARGET, _COST)),
    AdminCommand("topic unlink", "End the link from TOPIC to TARGET.", _changing("unlink", "topic", "target"),
                 (_TOPIC, _TARGET)),
    AdminCommand("topic list", "Name all topics, or the links of one with their costs.", list_topics,
                 (AdminArgument("topic", "a topic, to see its links", default="", several=False),)),
    AdminCommand("topic subscribers", "Print each subscriber of a topic, where it listens, and its quality of service.",
                 subscribers, (_TOPIC,)),
    AdminCommand("topic unsubscribe", "End a subscriber's subscription to a topic.",
                 _changing("unsubscribe", "topic", "subscriber"),
                 (_TOPIC, AdminArgument("subscriber", "name of the subscriber"))),
)  # fmt: skip


def prompt(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Run commands from standard input, or from ``execute``."""
    yield from run_prompt(access, _COMMANDS, given["execute"])


COMMANDS = (
    *_COMMANDS,
    AdminCommand("prompt", "Take one command after the other, as icestormadmin does: `help` names them.", prompt,
                 (AdminArgument("execute", "run these, with ; between them, and end", default="", required=False),)),
)  # fmt: skip
