"""Contract items about nodes: start, status, pause, kill, logs, and an operator's actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from harness.contract.core import (
    CALL_SECONDS,
    HEALTHY_SECONDS,
    Bench,
    BenchClient,
    Broken,
    ContractItem,
    NotClaimed,
    TookTooLong,
    quietly,
    told,
)
from harness.contract.data_kinds import TAKE_SECONDS, DataKind, QueueKind, kind_of
from harness.contract.pitfalls import observe_start
from nodes.timeouts import within
from stormproof.contracts.backend import DEAD, PAUSED, RUNNING
from stormproof.contracts.client import NotDone
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.system import RoleChange
from stormproof.node_logs import LogLine
from stormproof.timeout_scale import TIMEOUT_FACTOR

OUTAGE_SECONDS = 4.0 * TIMEOUT_FACTOR
"""The time that a client's call may take while no node answers. It is longer than the default time-outs of
workloads."""
_CLOCK_SECONDS = 5.0
_LOG_SECONDS = 60.0
_LEAST_SHARE = 0.1
"""The least share of a log's lines that must have a time. It is low because some systems split one entry over many
lines."""
_NO_CLIENTS = "its clients have no primitives that the suite knows"
_ODD_LINES = ("", " ", "no time here", "\ufffd\x00", "9" * 4000, "{", "[1] (")


async def _start(bench: Bench) -> str:
    await bench.cluster.install()
    await bench.cluster.start()
    began = time.monotonic()
    healthy = asyncio.create_task(bench.cluster.await_healthy(HEALTHY_SECONDS))
    try:
        while not healthy.done():
            await asyncio.wait({healthy}, timeout=0.5)
            await _demand_running(bench)
    finally:
        healthy.cancel()
    if not healthy.result():
        raise Broken(f"it is not healthy after {HEALTHY_SECONDS:g} s: {await bench.cluster.describe()}")
    took = time.monotonic() - began
    await observe_start(bench)
    await _demand_running(bench)
    return f"healthy after {took:.1f} s"


async def _demand_running(bench: Bench) -> None:
    for machine in bench.cluster.topology.machines:
        for program in bench.cluster.programs(machine):
            if bench.cluster.restarted(machine, program):
                continue
            if (await bench.backend.process(machine, program)).state != RUNNING:
                raise Broken(f"the program {program} of {machine} has ended: {await bench.cluster.describe()}")


async def _status(bench: Bench) -> str:
    statuses = await bench.statuses()
    for node, status in zip(bench.nodes, statuses, strict=True):
        if status.node != node:
            raise Broken(f"asked for {node}, it is the status of {status.node!r}")
        if not status.reachable:
            raise Broken(f"{node} runs, but is reported as unreachable: {(status.detail or {}).get('error')}")
        if strangers := set(status.view) - set(bench.nodes):
            raise Broken(f"{node}'s view names {', '.join(sorted(strangers))}, which are not nodes")
    if not any(status.serving for status in statuses):
        raise Broken("it is healthy, and no node serves")
    return ", ".join(f"{status.node} {status.role}" for status in statuses)


async def _prepare(bench: Bench) -> str:
    async with within(HEALTHY_SECONDS):
        await bench.cluster.prepare()
    if not bench.overrides("prepare"):
        raise NotClaimed("nothing has to be prepared")
    if not await bench.cluster.await_healthy(HEALTHY_SECONDS):
        raise Broken(f"it is no longer healthy: {await bench.cluster.describe()}")
    return "still healthy"


async def _prepare_again(bench: Bench) -> str:
    bench.demand("prepare")
    body, kind = bench.body(), kind_of(bench)
    await kind.prepare(bench)
    client = await bench.client()
    await client.call(kind.put(client, body))
    try:
        async with within(HEALTHY_SECONDS):
            await bench.cluster.prepare()
    except Exception as error:
        raise Broken(f"the second time it raised {told(error)}") from error
    client = await bench.client()
    until = time.monotonic() + CALL_SECONDS / 2
    while not (found := await kind.find(client)) and time.monotonic() < until:
        pass  # the set-up of a connection at its first use takes its time
    if found != [body]:
        raise Broken(f"the content is {_list(found)} afterwards, not {body.decode()} as before")
    return "nothing has changed"


async def _leaders(bench: Bench) -> str:
    witnesses = bench.cluster.leader_witnesses
    if not witnesses and not bench.overrides("leaders"):
        raise NotClaimed("it does not override leaders")
    demands, seen = bench.cluster.demands, {"": await bench.cluster.leaders()}
    known = {*demands.queues, *demands.logs, *demands.registers, *demands.topics, *demands.locks}
    seen |= {witness: await bench.cluster.leaders_told(witness) for witness in witnesses}
    for witness, leaders in seen.items():
        who = f"{witness} says that" if witness else "it says that"
        for name, node in leaders.items():
            if node not in bench.nodes:
                raise Broken(f"{who} {node!r} leads {name}; the nodes are {', '.join(bench.nodes)}")
            if known and name not in known:
                raise Broken(f"{who} {node} leads {name!r}, which is no object of the workload")
    if not any(seen.values()):
        if len(bench.nodes) == 1:
            raise NotClaimed("one node, which leads nothing in particular")
        raise Broken("it is healthy, but has no leader")
    return ", ".join(sorted(set().union(*(set(leaders.values()) for leaders in seen.values()))))


async def _repair(bench: Bench) -> str:
    bench.demand("repair")
    try:
        async with within(HEALTHY_SECONDS):
            done = await bench.cluster.repair()
    except Exception as error:
        raise Broken(f"of a healthy system it raised {told(error)}") from error
    if not isinstance(done, str):
        raise Broken(f"it returned {done!r} instead of a sentence")
    if not await bench.cluster.await_healthy(HEALTHY_SECONDS):
        raise Broken(f"it is not healthy after it: {await bench.cluster.describe()}")
    return done or "nothing had to be done"


async def _time_of(bench: Bench) -> str:
    bench.demand("time_of")
    for node in bench.nodes:
        found = await bench.cluster.time_of(node)
        if found is None:
            raise Broken(f"{node} runs, and does not tell")
        if abs(off := found - time.time()) > _CLOCK_SECONDS:
            raise Broken(f"{node} is {off:+.0f} s off, though nothing is wrong with its clock")
    return "as the machine's clock"


async def _outage(bench: Bench, kind: str) -> dict[str, Any]:
    """Pause or kill the first program of every node while a client is connected, and return the observations.

    All nodes are affected, so that none is left that could answer. Afterwards all run again. This is done once for all
    items that use the observations.

    Raises:
        NotClaimed: an earlier attempt failed.
    """
    if kind in bench.facts:
        found: dict[str, Any] | None = bench.facts[kind]
        if found is None:
            raise NotClaimed(f"it goes by what {'pause' if kind == PAUSED else 'kill'} sees, which failed")
        return found
    bench.facts[kind] = None
    facts = await _outage_tried(bench, kind)
    bench.facts[kind] = facts
    return facts


async def _outage_tried(bench: Bench, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"put": None, "take": None}
    place: DataKind | None = None
    client: BenchClient | None = None
    if bench.make_connection() is not None:
        place = kind_of(bench)
        await place.prepare(bench)
        client = await bench.client()
        facts["verb"] = place.verb
        await client.call(place.put(client, bench.body()))
        await place.find(client)  # so that the set-up of a connection at its first use is done
    targets = [(node, bench.cluster.programs(node)[0]) for node in bench.nodes]
    act = bench.backend.pause if kind == PAUSED else bench.backend.kill
    await asyncio.gather(*(act(*target) for target in targets))
    facts["states"] = {node: (await bench.backend.process(node, program)).state for node, program in targets}
    asking = asyncio.create_task(bench.cluster.statuses())
    body = facts["body"] = bench.body()
    if place is not None and client is not None:
        facts["put"] = await _seen(client, place.put(client, body))
        if isinstance(place, QueueKind) and kind == DEAD:
            facts["take"] = await _seen(client, client.connection.take(place.queue, TAKE_SECONDS))
            facts["close"] = await _seen(client, client.connection.close())
    facts["statuses"] = await asking
    facts["healthy"] = await bench.mend()
    if place is not None and client is not None:
        await quietly(client.connection.close())
        other = await bench.client()
        facts["found"] = await place.find(other)
        again = bench.body()
        facts["again"] = await _seen(other, place.put(other, again), HEALTHY_SECONDS)
        facts["back"] = again in await place.find(other)
    return facts


async def _seen(client: BenchClient, call: Any, seconds: float = OUTAGE_SECONDS) -> Any:
    """Return the end of a call as a pair: its exception or None, and its result."""
    try:
        return None, await client.call(call, seconds)
    except Exception as error:
        return error, None


def _state(states: dict[str, str], wanted: str) -> None:
    for node, state in states.items():
        if state != wanted:
            raise Broken(f"the process of {node} is {state} then")


def _unreachable(statuses: Sequence[NodeStatus], how: str) -> None:
    if lying := [status for status in statuses if status.reachable]:
        status = lying[0]
        raise Broken(f"{status.node}, whose program is {how}, is reported as reachable, as {status.role!r}"
                     f"{', and as serving' if status.serving else ''}")  # fmt: skip


async def _pause(bench: Bench) -> str:
    facts = await _outage(bench, PAUSED)
    _state(facts["states"], PAUSED)
    if not facts["healthy"]:
        raise Broken(f"it continues, but is not healthy after {HEALTHY_SECONDS:g} s: {await bench.cluster.describe()}")
    return "paused, and healthy after it continued"


async def _pause_status(bench: Bench) -> str:
    if not bench.overrides("status"):
        raise NotClaimed("it does not override status, and the kernel accepts connections to paused programs")
    _unreachable((await _outage(bench, PAUSED))["statuses"], "paused")
    return "reported as unreachable"


async def _kill(bench: Bench) -> str:
    facts = await _outage(bench, DEAD)
    if any(bench.cluster.restarted(node, bench.cluster.programs(node)[0]) for node in bench.nodes):
        raise NotClaimed("a supervisor restarts it")
    _state(facts["states"], DEAD)
    _unreachable(facts["statuses"], "dead")
    return "dead, and reported as unreachable"


async def _start_again(bench: Bench) -> str:
    facts = await _outage(bench, DEAD)
    if not facts["healthy"]:
        raise Broken(f"killed and started, it is not healthy after {HEALTHY_SECONDS:g} s: "
                     f"{await bench.cluster.describe()}")  # fmt: skip
    if facts["put"] is None:
        return "healthy"
    error, _ = facts["again"]
    if error is not None:
        raise Broken(f"it is healthy, and {facts['verb']}() raises {told(error)}")
    if not facts["back"]:
        raise Broken(f"it is healthy, and what {facts['verb']}() confirmed is not there")
    return "healthy, and clients can work"


async def _not_done(bench: Bench) -> str:
    facts = await _outage(bench, PAUSED)
    if facts["put"] is None:
        raise NotClaimed(_NO_CLIENTS)
    (error, _), verb = facts["put"], facts["verb"]
    if error is None:
        raise Broken(f"{verb}() returned while every node was paused: no node can have confirmed it")
    if isinstance(error, NotDone) and facts["body"] in facts["found"]:
        raise Broken(f"{verb}() to paused nodes raised NotDone ({told(error)}), but it was done after they continued")
    end = "no answer" if isinstance(error, TookTooLong) else type(error).__name__
    return f"{verb}() to paused nodes: {end}, and it was {'' if _late(facts) else 'not '}done later"


def _late(facts: dict[str, Any]) -> bool:
    return facts["body"] in facts["found"]


async def _to_the_dead(bench: Bench) -> str:
    facts = await _outage(bench, DEAD)
    if facts["put"] is None:
        raise NotClaimed(_NO_CLIENTS)
    (error, _), verb = facts["put"], facts["verb"]
    if error is None:
        raise Broken(f"{verb}() returned while every node was dead: no node can have confirmed it")
    if isinstance(error, NotDone) and _late(facts):
        raise Broken(f"{verb}() to dead nodes raised NotDone ({told(error)}), and it was done")
    return f"{verb}() raises {type(error).__name__}"


async def _lost(bench: Bench) -> str:
    facts = await _outage(bench, DEAD)
    if facts["take"] is None:
        raise NotClaimed("it has no queues" if facts["put"] is not None else _NO_CLIENTS)
    error, found = facts["take"]
    if error is None:
        what = "None, which is an empty queue" if found is None else "a message"
        raise Broken(f"take() returned {what}, on a connection whose node is dead: it would never be replaced")
    return f"take() raises {type(error).__name__}"


async def _close_lost(bench: Bench) -> str:
    facts = await _outage(bench, DEAD)
    if "close" not in facts:
        raise NotClaimed(_NO_CLIENTS if facts["put"] is None else "tried of queues alone")
    error, _ = facts["close"]
    if error is not None:
        raise Broken(f"of a connection whose node is dead, close() raised {told(error)}")
    return "raises nothing"


async def _stop(bench: Bench) -> str:
    await bench.cluster.stop()
    for machine in bench.cluster.topology.machines:
        for program in bench.cluster.programs(machine):
            if (state := (await bench.backend.process(machine, program)).state) != DEAD:
                raise Broken(f"the program {program} of {machine} is {state}")
    await bench.cluster.start()
    if not await bench.cluster.await_healthy(HEALTHY_SECONDS):
        raise Broken(f"stopped and started, it is not healthy after {HEALTHY_SECONDS:g} s: "
                     f"{await bench.cluster.describe()}")  # fmt: skip
    return "stopped in order, and healthy when it was started again"


async def _logs(bench: Bench) -> str:
    folder = bench.folder / "logs"
    await bench.cluster.collect_logs(folder)
    texts, missing = {}, []
    for machine in bench.cluster.topology.machines:
        for name, path in bench.cluster.logs(machine).items():
            text = (folder / f"{name}.log").read_text(errors="replace")
            if text.startswith("(no log: "):
                missing.append(f"{name} ({path})")
            elif machine in bench.nodes:
                texts[name] = text
    bench.facts["logs"] = texts
    if missing:
        raise Broken(f"no file exists for {', '.join(missing)}")
    if not any(texts.values()):
        raise NotClaimed("its programs write nothing")
    return ", ".join(f"{name} {text.count(chr(10))} lines" for name, text in texts.items() if text)


def _lines(bench: Bench) -> list[str]:
    texts: dict[str, str] = bench.facts.get("logs", {})
    lines = [line for text in texts.values() for line in text.splitlines() if line.strip()]
    if not lines:
        raise NotClaimed("its programs write nothing")
    return lines


async def _parse_line(bench: Bench) -> str:
    lines, system = _lines(bench), bench.system
    parsed: list[tuple[str, LogLine]] = []
    for line in (*_ODD_LINES, *lines):
        try:
            found = system.parse_line(line)
        except Exception as error:
            raise Broken(f"of the line {line[:100]!r} it raised {told(error)}") from error
        if not isinstance(found, LogLine):
            raise Broken(f"of the line {line[:100]!r} it returned {found!r}")
        parsed.append((line, found))
    timed = [(line, found.time) for line, found in parsed[len(_ODD_LINES):] if found.time is not None]
    if not timed and not bench.overrides("parse_line"):
        raise NotClaimed("it does not override parse_line, and its lines are not those of the reference broker")
    if len(timed) < _LEAST_SHARE * len(lines):
        strange = next(line for line, found in parsed[len(_ODD_LINES):] if found.time is None)
        raise Broken(f"it finds a time in {len(timed)} of {len(lines)} lines; not in {strange[:150]!r}")
    for line, moment in timed:
        if not bench.began - _LOG_SECONDS < moment < time.time() + _LOG_SECONDS:
            raise Broken(f"it takes the line {line[:150]!r} for one of {(moment - time.time()) / 60:+.0f} minutes from "
                         "now; is it the time zone?")  # fmt: skip
    return f"a time in {len(timed)} of {len(lines)} lines"


async def _role_change(bench: Bench) -> str:
    if not bench.overrides("role_change"):
        raise NotClaimed("it does not override role_change")
    roles: dict[str, int] = {}
    lines = _lines(bench)
    for line in (*_ODD_LINES, *lines):
        found = bench.system.role_change(bench.system.parse_line(line).text)
        if found is not None and not isinstance(found, RoleChange):
            raise Broken(f"of the line {line[:100]!r} it returned {found!r}")
        if found is not None:
            roles[found.role] = roles.get(found.role, 0) + 1
    if not roles:
        raise Broken(f"none of {len(lines)} lines announces a role, though every node was started, killed and stopped")
    return ", ".join(f"{role} {count}" for role, count in roles.items())


def _list(bodies: Sequence[bytes]) -> str:
    return ", ".join(body.decode(errors="replace") for body in bodies) or "nothing"


BEGIN = (
    ContractItem("start", "installed and started, all programs run, in the foreground, and the system becomes healthy",
                 "command",
                 "see the program's own log; `command` must not put it into the background; `healthy` decides", _start,
                 healthy=False),
    ContractItem("status", "of a healthy system each node is reachable and named as it is, and one at least serves",
                 "status", "return NodeStatus(machine.name, reachable=True, role=..., serving=...)", _status),
    ContractItem("prepare", "it ends, and the system is healthy then", "prepare",
                 "declare what clients need, over the nodes that run", _prepare),
    ContractItem("prepare-again", "a second time it neither raises nor changes what is there", "prepare",
                 "take `it is there already` for done; delete nothing", _prepare_again),
)  # fmt: skip
"""Items that are tested before any client connects."""

END = (
    ContractItem("leaders",
                 "`leaders` and `leaders_seen` name nodes and the workload's queues, somebody when all is healthy",
                 "leaders",
                 "answer with the names of nodes (n1, n2...), not with addresses or what the system calls them",
                 _leaders),
    ContractItem("repair", "of a healthy system it changes nothing that matters, and returns a sentence or nothing",
                 "repair", "look first whether anything has to be done; return what was done", _repair),
    ContractItem("time_of", "it tells the machine's time of day, seconds since 1970", "time_of",
                 "seconds, in UTC, as the program has them", _time_of),
    ContractItem("pause", "a node's first program can be paused, and goes on", "programs",
                 "the program must stay in its process group; what watches it must bear a pause", _pause),
    ContractItem("pause-status", "a paused node is reported as unreachable", "status",
                 "ask the program something that it has to answer; raise where it does not", _pause_status),
    ContractItem("not-done-paused", "what is sent to paused nodes is not confirmed; NotDone only if it never happens",
                 "send",
                 "raise NotDone only before the request was written, or when the system has said that it did nothing; "
                 "a time-out is another exception", _not_done),
    ContractItem("kill", "a killed node is dead, and reported as unreachable", "status",
                 "don't answer from what was known before; a program of several processes must not leave its group",
                 _kill),
    ContractItem("send-to-dead", "what is sent to nodes that are dead is not confirmed", "send",
                 "return when the system has confirmed it, not when it is written", _to_the_dead),
    ContractItem("lost-connection", "take on a connection that is lost raises", "take",
                 "raise what went wrong with the connection; None means that the queue is empty", _lost,
                 needs="queues"),
    ContractItem("close-lost", "close of a connection that is lost raises nothing", "close",
                 "suppress what a connection that is gone can raise", _close_lost, needs="queues"),
    ContractItem("start-again", "killed and started again it becomes healthy, and clients can work", "files",
                 "a start must bear what a kill leaves: lock files, pid files, half a log", _start_again),
    ContractItem("stop", "stopped in order it ends, and it can be started again", "command",
                 "the program must end at SIGTERM, with all that it has started", _stop),
    ContractItem("logs", "the files that `logs` names are there", "logs",
                 "paths below the machine's folder, or absolute", _logs, healthy=False),
    ContractItem("parse_line", "it finds the time in the system's own lines, and bears any other", "parse_line",
                 "match the lines as they are in the log; return LogLine(None, line) for others; mind the time zone",
                 _parse_line, healthy=False),
    ContractItem("role_change", "the system's own lines announce a role at least once", "role_change",
                 "it is given the text of LogLine, without the time: match that", _role_change, healthy=False),
)  # fmt: skip
"""Items that are tested after clients have connected."""
