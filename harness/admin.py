"""``stormproof admin``: looks after running reference brokers, as ``icestormadmin`` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from harness.errors import BackendError, UsageError
from nodes.reference.frames import TOPIC_MANAGER
from nodes.stomp import ProtocolError
from nodes.systems.admin import AdminConnection
from workloads.connection import Connection, ConnectionBroken, NotSent, Settings

ANSWER_SECONDS = 5.0
REQUEST_SECONDS = 30.0
"""A request waits while the group elects a coordinator."""

_ERRORS = {
    "topic-exists": "there is a topic of that name already",
    "no-such-topic": "there is no such topic; `stormproof admin topic list` names all",
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

app = typer.Typer(
    help="Look after running brokers: replicas, topics, subscribers.", no_args_is_help=True, rich_markup_mode=None
)
topic_app = typer.Typer(help="Topics, their links and subscribers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topic_app, name="topic")

ServerOption = Annotated[str, typer.Option("--server", help="host:port of any replica")]
LoginOption = Annotated[str, typer.Option(help="user name")]
PasscodeOption = Annotated[str, typer.Option(envvar="STORMPROOF_PASSCODE", help="password", show_default=False)]
NameArgument = Annotated[str, typer.Argument(help="name of a topic")]

_POLL = 0.2
_LOGIN_HINT = ", and who you are with --login and --passcode (or STORMPROOF_PASSCODE)"
_SERVER, _LOGIN, _PASSCODE = "127.0.0.1:61613", "guest", "guest"


@app.command(short_help="The state of every replica's election.")
def replica(server: ServerOption = _SERVER, login: LoginOption = _LOGIN, passcode: PasscodeOption = _PASSCODE) -> None:
    """Print each replica's id, coordinator, group, state and the most replicas that it has seen.

    A replica that does not answer is listed as unreachable.
    """
    for line in replica_lines(asyncio.run(_statuses(server, login, passcode))):
        print(line)


@app.command("add-replica", short_help="Let a joram group grow while it runs.")
def add_replica(
    name: Annotated[str, typer.Argument(help="name of the new replica, which must be running")],
    links: Annotated[str, typer.Argument(help="host:port of its links")],
    clients: Annotated[str, typer.Argument(help="host:port of its clients")],
    server: Annotated[str, typer.Option("--server", help="host:port of the master")] = _SERVER,
    login: LoginOption = _LOGIN, passcode: PasscodeOption = _PASSCODE,
    wait: Annotated[float, typer.Option(help="seconds to wait until it belongs to the group", min=0)] = 300,
) -> None:
    """Have the master take in a replica: it learns the state first, and then belongs to the group.

    The new replica's configuration lists all replicas in `peers`, itself last, and has the option `join: true`; with a
    descriptor it is started with --join.
    """
    _address(clients, "CLIENTS")
    asyncio.run(_add_replica(server, login, passcode, name, _address(links, "LINKS"), clients, wait))
    print(f"{name} is one of the replicas")


async def _add_replica(
    server: str, login: str, passcode: str, name: str, links: tuple[str, int], clients: str, wait: float
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    admin = AdminConnection(*_address(server), login, passcode)
    try:
        await admin.add_replica(name, links, clients, ANSWER_SECONDS)
        while name not in (status := await admin.status(ANSWER_SECONDS))["replicas"]:
            if name not in status["learners"]:
                raise BackendError(f"{server} is no longer master, {name} was not added; ask the master again")
            if loop.time() >= deadline:
                raise BackendError(f"{name} has not caught up within {wait:g} s, and {server} goes on trying; does it "
                                   f"run, is it told to join, and can {server} reach {links[0]}:{links[1]}?")
            await asyncio.sleep(_POLL)
    except ProtocolError as error:
        raise UsageError(f"{name} was not added: {error}") from None
    except (OSError, TimeoutError, EOFError) as error:
        raise BackendError(f"{server} does not answer ({error or type(error).__name__}); is it running?") from None
    finally:
        admin.close()


def replica_lines(statuses: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """What ``admin replica`` prints, in the form of the documentation's example; None: no answer."""
    lines = [f"replica count: {len(statuses)}"]
    for ident, status in sorted(statuses.items()):
        if status is None:
            lines += [f"{ident}: id:         {ident}", f"{ident}: state:      unreachable"]
            continue
        fields = {"id": ident, "coord": status["coord"], "group name": status["group"], "state": status["state"],
                  "group": ",".join(map(str, status["up"])), "max": status["max"]}  # fmt: skip
        lines += [f"{ident}: {name + ':':<11} {value}".rstrip() for name, value in fields.items()]
    return lines


@topic_app.command("create", short_help="Make topics.")
def create(names: Annotated[list[str], typer.Argument(help="names of topics")], server: ServerOption = _SERVER,
           login: LoginOption = _LOGIN, passcode: PasscodeOption = _PASSCODE) -> None:
    """Make topics."""
    for name in names:
        _request(server, login, passcode, "create", topic=name)


@topic_app.command("destroy", short_help="End topics.")
def destroy(names: Annotated[list[str], typer.Argument(help="names of topics")], server: ServerOption = _SERVER,
            login: LoginOption = _LOGIN, passcode: PasscodeOption = _PASSCODE) -> None:
    """End topics, with their subscriptions and links."""
    for name in names:
        _request(server, login, passcode, "destroy", topic=name)


@topic_app.command("link", short_help="Forward one topic's events to another's subscribers.")
def link(source: NameArgument, target: NameArgument,
         cost: Annotated[int, typer.Option(help="events that cost more stay; 0: none do", min=0)] = 0,
         server: ServerOption = _SERVER, login: LoginOption = _LOGIN, passcode: PasscodeOption = _PASSCODE) -> None:
    """Forward the events published on SOURCE to the subscribers of TARGET."""
    _request(server, login, passcode, "link", topic=source, target=target, cost=cost)


@topic_app.command("unlink", short_help="End a link.")
def unlink(source: NameArgument, target: NameArgument, server: ServerOption = _SERVER, login: LoginOption = _LOGIN,
           passcode: PasscodeOption = _PASSCODE) -> None:
    """End the link from SOURCE to TARGET."""
    _request(server, login, passcode, "unlink", topic=source, target=target)


@topic_app.command("list", short_help="All topics, or one with its links.")
def list_topics(name: Annotated[str | None, typer.Argument(help="a topic, to see its links")] = None,
                server: ServerOption = _SERVER, login: LoginOption = _LOGIN,
                passcode: PasscodeOption = _PASSCODE) -> None:
    """Name all topics, or the links of one with their costs."""
    if name is None:
        for topic in _request(server, login, passcode, "list"):
            print(topic)
        return
    for target, cost in _request(server, login, passcode, "links", topic=name):
        print(f"{target} with cost {cost}")


@topic_app.command("subscribers", short_help="Who gets a topic's events.")
def subscribers(name: NameArgument, server: ServerOption = _SERVER, login: LoginOption = _LOGIN,
                passcode: PasscodeOption = _PASSCODE) -> None:
    """Print each subscriber, where it listens, and its quality of service."""
    for ident, endpoint, retries, reliability in _request(server, login, passcode, "subscribers", topic=name):
        print(f"{ident} at {endpoint}: retryCount {retries}, reliability {reliability}")


@topic_app.command("unsubscribe", short_help="End a subscription.")
def unsubscribe(name: NameArgument, subscriber: Annotated[str, typer.Argument(help="name of the subscriber")],
                server: ServerOption = _SERVER, login: LoginOption = _LOGIN,
                passcode: PasscodeOption = _PASSCODE) -> None:
    """End a subscriber's subscription to a topic."""
    _request(server, login, passcode, "unsubscribe", topic=name, subscriber=subscriber)


def _address(server: str, what: str = "--server") -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{what} {server}: write it as host:port")
    return host, int(port)


async def _statuses(server: str, login: str, passcode: str) -> dict[int, Mapping[str, Any] | None]:
    """The status of every replica that the one at ``server`` knows, by id."""
    first = await _status(server, login, passcode)
    if isinstance(first, str):
        raise BackendError(f"{server} does not answer: {first}; name a running replica with --server{_LOGIN_HINT}")
    if "coord" not in first:
        raise UsageError(f"{server} is of design {first['design']}, which has no such elections")
    addresses: Sequence[str] = first["addresses"]
    answers = await asyncio.gather(*(_status(address, login, passcode) for address in addresses))
    return {ident: None if isinstance(answer, str) else answer for ident, answer in enumerate(answers, 1)}


async def _status(server: str, login: str, passcode: str) -> Mapping[str, Any] | str:
    """A broker's status, or why there is none."""
    admin = AdminConnection(*_address(server), login, passcode)
    try:
        return await admin.status(ANSWER_SECONDS)
    except (OSError, TimeoutError, EOFError, ProtocolError, ValueError) as error:
        return str(error) or type(error).__name__
    finally:
        admin.close()


def _request(server: str, login: str, passcode: str, request: str, **body: Any) -> Any:
    """A request to the topic manager, carried out.

    Raises:
        BackendError: no answer. UsageError: it can't be done.
    """
    headers = _answered(server, login, passcode, request, body)
    answer = json.loads(headers["x-answer"])
    while "x-more" in headers:
        headers = _answered(server, login, passcode, request, {**body, "after": headers["x-more"]})
        answer += json.loads(headers["x-answer"])
    return answer


def _answered(server: str, login: str, passcode: str, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers of the answer to a request that was carried out; raises as ``_request`` does."""
    try:
        headers = asyncio.run(_ask(_address(server), Settings(login, passcode, reliable=False), request, body))
    except TimeoutError:
        raise BackendError(f"{server}: no answer within {REQUEST_SECONDS:g} s: replicas without a majority wait for"
                           f" one; see `stormproof admin replica --server {server}`") from None  # fmt: skip
    except (ConnectionBroken, NotSent) as error:
        raise BackendError(f"{server}: {error}; name a running replica with --server{_LOGIN_HINT}") from None
    error_word = headers.get("x-error")
    if error_word is not None:
        subject = body.get("target") or body.get("subscriber") or body.get("topic", "")
        raise UsageError(f"{request} {subject:.60}: {_ERRORS.get(error_word, error_word)}")
    return headers


async def _ask(address: tuple[str, int], settings: Settings, request: str,
               body: Mapping[str, Any]) -> Mapping[str, str]:
    connection = Connection([address], settings)
    await connection.open(ANSWER_SECONDS)
    try:
        headers = {"destination": TOPIC_MANAGER, "x-request": request, "content-type": "application/json"}
        return await connection.request("SEND", headers, json.dumps(body).encode(), REQUEST_SECONDS)
    finally:
        await connection.abort()
