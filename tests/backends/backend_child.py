"""Stands in for the harness's child: provisions a backend and runs checks of it, or waits to be killed.

Usage: backend_child.py BACKEND RUN_DIR CHECK... Uses nothing but the standard library and this project, so that
an ordinary user's own interpreter can run it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import clock_checks
import disk_checks
import packet_checks
import usage_checks

from harness.backends.catalog import BACKENDS
from nodes.systems.catalog import SYSTEMS
from stormproof.clients.program import DIES_WITH_US
from stormproof.contracts.backend import Backend
from stormproof.contracts.client_places import ClientPlaces
from stormproof.contracts.cluster import MAIN, Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.test import Test

PORT = 7100
NODES = ("n1", "n2", "n3")

# Answers each connection with the address it came from.
ECHO = """
import signal, socketserver
signal.signal(signal.SIGTERM, lambda *_: (print("got SIGTERM", flush=True), exit(0)))
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.client_address[0].encode())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 64
Server(("", PORT), Handler).serve_forever()
""".replace("PORT", str(PORT))

# Asks from a node: prints the source address that the other side saw, or "silence".
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], PORT), timeout=float(sys.argv[2])) as s:
        print(s.recv(99).decode())
except TimeoutError:
    print("silence")
""".replace("PORT", str(PORT))

SILENCE_S = 0.3


async def start_echo(backend: Backend, *nodes: str) -> None:
    for node in nodes:
        base = backend.node_dir(node)
        await backend.upload(node, ECHO.encode(), f"{base}/code/echo.py")
        await backend.upload(node, ASK.encode(), f"{base}/code/ask.py")
        await backend.start(node, MAIN, [backend.python(node), f"{base}/code/echo.py"], f"{base}/logs/broker.log")
        await until(lambda node=node: from_host(backend, "c1", node), lambda answer: answer != "refused")


async def until(ask: Callable[[], Awaitable[Any]], done: Callable[[Any], bool]) -> None:
    """Ask again and again; the test's own time limit ends it."""
    for _ in range(1000):
        if done(await ask()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came")


IN_PLACES = "STORMPROOF_TEST_PLACES" in os.environ
"""Whether client hosts are networks of their own; connections are then made there, and not bound."""


async def from_host(backend: Backend, host: str, node: str, timeout: float = 3.0) -> str:
    """Connect from a client host; the source address the node saw, ``silence`` or ``refused``."""
    if not IN_PLACES:
        return await connecting(backend.address(node), timeout, (backend.address(host), 0))
    assert isinstance(backend, ClientPlaces)
    program = await asyncio.create_subprocess_exec(
        *backend.place_command(host), sys.executable, "-c", ASK, backend.address(node), str(timeout),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = {(await program.communicate())[0].decode().strip()}
    if answers == {""}:
        return "refused"
    answers.add(await in_place(backend, host, lambda: connecting(backend.address(node), timeout, None)))
    assert len(answers) == 1, (answers, "a program there, and a thread of this process that went there")
    return answers.pop()


async def in_place(backend: Any, host: str, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """Do the work on a loop of its own, in a thread that has entered a client host's network."""
    def there() -> str:
        backend.enter_place(backend.address(host))
        return asyncio.run(work())

    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, there)


async def connecting(address: str, timeout: float, local: tuple[str, int] | None) -> str:
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(address, PORT, local_addr=local)
            answer = (await reader.read()).decode()
            writer.close()
            return answer
    except TimeoutError:
        return "silence"
    except ConnectionRefusedError:
        return "refused"


async def from_node(backend: Backend, source: str, target: str, timeout: float = 3.0) -> str:
    command = (f"{backend.python(source)} {backend.node_dir(source)}/code/ask.py "
               f"{backend.address(target)} {timeout}")
    return (await backend.exec(source, command)).output.strip()


async def expect_error(call: Awaitable[object], *words: str) -> None:
    try:
        await call
    except BackendError as error:
        assert all(word in str(error) for word in words), str(error)
        assert "\n" not in str(error), "one line"
    else:
        raise AssertionError(f"no BackendError that says {words}")


async def check_commands(backend: Backend) -> None:
    """Exit status, odd output, nothing that a command does reaches the next one."""
    run = backend.exec
    root = await run("n1", "id -u && nft list tables")
    assert root.status == 0 and root.output.startswith("0\n")
    result = await run("n2", "echo out; echo err >&2; exit 7")
    assert (result.status, result.output) == (7, "out\nerr\n")
    assert (await run("n1", "printf 'no newline'")).output == "no newline"
    assert (await run("n1", "cd /; X=1; set -eu; exec 1>&-")).output == ""
    assert (await run("n1", "echo ${X-unset}; hostname")).output == "unset\nn1\n"
    broken = await run("n1", "if then 'quote")
    assert broken.status != 0 and broken.output, "a syntax error is an ordinary failure"
    odd = await run("n1", r"""printf '\000\377\r\n\033[2J begin end 0\n'; cat; echo "it's"; exit 0""")
    assert odd.output == "\0\ufffd\r\n\033[2J begin end 0\nit's\n"


async def check_shell_death(backend: Backend) -> None:
    """A shell that is killed under a command is an error of that command only."""
    await expect_error(backend.exec("n1", "kill -9 $$; sleep 0.2"), "n1", "shell ended")
    assert (await backend.exec("n1", "echo back")).output == "back\n"


async def check_limits(backend: Backend) -> None:
    """Big output is bounded, a command that hangs is ended, and neither harms what comes after."""
    big = await backend.exec("n1", "yes | head -c 9000000; echo tail; exit 3", 60)
    assert big.status == 3 and len(big.output) < 1_100_000 and "bytes of output were not kept" in big.output
    await expect_error(backend.exec("n1", "sleep 4711; echo late", 0.3), "n1", "0.3 s", "sleep 4711")
    assert (await backend.exec("n1", "echo fresh")).output == "fresh\n"
    assert "sleep 4711" not in (await backend.exec("n1", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output.replace(
        "cat /proc", "")
    task = asyncio.create_task(backend.exec("n1", "sleep 4711", 60))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    late = await backend.exec("n1", "(sleep 0.05; echo stray) & echo mine")
    await asyncio.sleep(1.0)
    assert late.output == "mine\n" and (await backend.exec("n1", "echo next")).output == "next\n"
    many = await asyncio.gather(*(backend.exec(node, f"echo {i}") for i in range(20) for node in NODES))
    assert [int(result.output) for result in many] == [i for i in range(20) for _ in NODES]


async def check_files(backend: Backend) -> None:
    """Files arrive byte for byte, replace atomically, and failures leave the shell usable."""
    content = bytes(range(256)) * 4096 + b"\n" * 3
    for n, data in enumerate([content, b"", b"exit 1\n" * 1000]):
        path = f"{backend.node_dir('n2')}/deep/er/it's {n}"
        await backend.upload("n2", data, path)
        await backend.upload("n2", data, path)
        assert await backend.download("n2", path) == data
    folder = f"{backend.node_dir('n2')}/deep/er"
    assert (await backend.exec("n2", f"ls -A {folder} | wc -l")).output.strip() == "3"
    await expect_error(backend.download("n2", "/no/such"), "n2", "/no/such", "No such file")
    await expect_error(backend.download("n2", "/etc"), "n2", "/etc")
    # The payload would create the file if a shell took it for commands.
    trap = f"touch {folder}/executed\n".encode() * 20000
    await expect_error(backend.upload("n2", trap, "/proc/nothing"), "n2", "/proc/nothing")
    await expect_error(backend.upload("n2", trap, "/dev/full/x"), "n2")
    assert (await backend.exec("n2", f"test -e {folder}/executed")).status == 1
    assert (await backend.exec("n1", f"test -e {backend.node_dir('n1')}/deep")).status == 1, "folders are private"
    await expect_error(backend.exec("n9", "true"), "n9", "n1, n2, n3")


async def check_process(backend: Backend) -> None:
    """Start, pause, resume, kill, stop act on the whole process group, and on nothing else."""
    base = backend.node_dir("n1")
    log = f"{base}/logs/b.log"
    assert (await backend.process("n1", MAIN)).state == "dead"
    await backend.kill("n1", MAIN)
    await backend.stop("n1", MAIN)
    await expect_error(backend.pause("n1", MAIN), "n1", "the broker is not running")
    await expect_error(backend.start("n1", MAIN, ["no-such-program"], log), "n1", "no-such-program")
    family = ["sh", "-c", "sleep 1001 & sleep 1002 & echo \"args: $*\"; wait", "sh", "it's", "a b", ""]
    await backend.start("n1", MAIN, family, log)
    running = await backend.process("n1", MAIN)
    assert running.state == "running" and running.pid
    await expect_error(backend.start("n1", MAIN, family, log), "n1", "already running", str(running.pid))
    assert await asleep(backend, running.pid)
    await backend.pause("n1", MAIN)
    assert await backend.process("n1", MAIN) == replace(running, state="paused")
    assert await states(backend, running.pid) == {"T"}
    await backend.resume("n1", MAIN)
    assert await asleep(backend, running.pid)
    await backend.pause("n1", MAIN)
    await backend.kill("n1", MAIN)
    assert (await backend.process("n1", MAIN)).state == "dead"
    assert await states(backend, running.pid) == set()
    await backend.start("n1", MAIN, family, log)
    await until(lambda: backend.download("n1", log), lambda text: text.count(b"\n") == 2)
    await backend.pause("n1", MAIN)
    await backend.stop("n1", MAIN)
    assert (await backend.process("n1", MAIN)).state == "dead"
    assert (await backend.download("n1", log)).decode() == "args: it's a b \n" * 2, "appended"


async def check_process_leftovers(backend: Backend) -> None:
    """A group whose leader died, a broker that ignores SIGTERM, a pid that another process has now."""
    log = f"{backend.node_dir('n1')}/b.log"
    await backend.start("n1", MAIN, ["sh", "-c", "sleep 1001 & echo; exit 0"], log)
    pid = int((await backend.download("n1", f"{backend.node_dir('n1')}/broker.pid")).split()[0])
    await until(lambda: backend.process("n1", MAIN), lambda process: process.state == "dead")
    assert await asleep(backend, pid)
    await backend.kill("n1", MAIN)
    assert await states(backend, pid) == set()

    await backend.start("n1", MAIN, ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], log)
    await asyncio.sleep(0.1)
    await backend.stop("n1", MAIN, timeout=0.2)
    assert (await backend.process("n1", MAIN)).state == "dead"

    other = int((await backend.exec("n1", "setsid sleep 1003 >/dev/null 2>&1 </dev/null & echo $!")).output)
    await backend.upload("n1", f"{other} 1\n".encode(), f"{backend.node_dir('n1')}/broker.pid")
    assert (await backend.process("n1", MAIN)).state == "dead", "same pid, other start time"
    await backend.kill("n1", MAIN)
    assert (await backend.exec("n1", f"kill -0 {other}")).status == 0, "the other process is not ours to kill"
    await backend.exec("n1", f"kill {other}")


async def states(backend: Backend, group: int) -> set[str]:
    command = f"cat /proc/[0-9]*/stat | sed 's/.*) //' | awk '$3 == {group} && $1 != \"Z\" {{ print $1 }}'"
    return set((await backend.exec("n1", command)).output.split())


async def asleep(backend: Backend, group: int) -> bool:
    """Whether the whole group comes to sleep, which one that was just started or let go on need not do at once."""
    for _ in range(50):
        if await states(backend, group) == {"S"}:
            return True
        await asyncio.sleep(0.05)
    return False


async def check_network(backend: Backend) -> None:
    """Every node and client host reaches every node, and is seen under its own address."""
    await start_echo(backend, *NODES)
    for target in NODES:
        for host in ("c1", "c2", "c3"):
            assert await from_host(backend, host, target) == backend.address(host)
        for source in NODES:
            if source != target:
                assert await from_node(backend, source, target) == backend.address(source)
    names = [*NODES, "c1", "c2", "c3"]
    assert len({backend.address(name) for name in names}) == len(names)
    assert (await backend.exec("n1", "getent hosts n3")).output.split() == [backend.address("n3"), "n3"]
    await expect_error(backend.set_network(frozenset({("n1", "n9")})), "n9")


async def check_cut(backend: Backend) -> None:
    """A one-way cut drops that direction only, counts, survives a second cut beside it, and heals."""
    await start_echo(backend, *NODES)
    await backend.set_network(frozenset({("n1", "n2"), ("c1", "c2")}))
    assert await from_node(backend, "n1", "n2", SILENCE_S) == "silence"
    assert await from_node(backend, "n2", "n1", SILENCE_S) == "silence", "answers come back on the cut link"
    assert await from_node(backend, "n1", "n3") == backend.address("n1")
    assert await from_host(backend, "c1", "n2") == backend.address("c1")
    first = await backend.dropped()
    assert set(first) == {("n1", "n2")} and first["n1", "n2"] >= 2

    await backend.set_network(frozenset({("n1", "n2"), ("c1", "n2"), ("n3", "c3")}))
    assert await from_host(backend, "c1", "n2", SILENCE_S) == "silence"
    assert await from_host(backend, "c3", "n3", SILENCE_S) == "silence"
    assert await from_host(backend, "c2", "n3") == backend.address("c2")
    assert await from_host(backend, "c2", "n2") == backend.address("c2")
    second = await backend.dropped()
    assert second["n1", "n2"] >= first["n1", "n2"] and second["c1", "n2"] >= 1 and second["n3", "c3"] >= 1

    await backend.set_network(frozenset())
    await backend.set_network(frozenset())
    assert await backend.dropped() == {}
    assert await from_node(backend, "n1", "n2") == backend.address("n1")
    assert await from_host(backend, "c3", "n3") == backend.address("c3")
    for node in NODES:
        assert "stormproof" not in (await backend.exec(node, "nft list ruleset")).output


async def check_cut_while_paused(backend: Backend) -> None:
    """A paused broker's node can be cut and healed; its kernel still takes connections."""
    await start_echo(backend, "n1", "n2")
    await backend.pause("n1", MAIN)
    assert await from_host(backend, "c1", "n1", SILENCE_S) == "silence"
    await backend.set_network(frozenset({("n2", "n1")}))
    await from_node(backend, "n2", "n1", SILENCE_S)
    assert (await backend.dropped())["n2", "n1"] >= 1
    await backend.set_network(frozenset())
    await backend.resume("n1", MAIN)
    assert await from_node(backend, "n2", "n1") == backend.address("n2")


async def check_keep_other_rules(backend: Backend) -> None:
    """Healing removes the table of Stormproof, and no other rule of the node."""
    await backend.exec("n1", "nft add table inet others")
    await backend.set_network(frozenset({("n2", "n1")}))
    await backend.set_network(frozenset())
    assert (await backend.exec("n1", "nft list tables")).output.strip().splitlines()[-1] == "table inet others"
    await backend.exec("n1", "nft delete table inet others")


async def check_shared(backend: Backend) -> None:
    """What one machine writes into a folder that all have in common, and locks there, the others see."""
    folder = shlex.quote(backend.shared_dir("common"))
    locked = f"cd {folder} && echo hello > word && flock --nonblock word"
    assert (await backend.exec("n1", f"{locked} true")).status == 0
    assert (await backend.exec("n2", f"cat {folder}/word")).output == "hello\n"
    # It waits for the lock: n3 has it for a moment whenever it tries.
    await backend.exec("n1", f"cd {folder} && flock word sleep 30 >/dev/null 2>&1 &")
    for _ in range(500):
        if (await backend.exec("n3", f"cd {folder} && flock --nonblock word true")).status != 0:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("n3 has the lock that n1 holds")
    try:
        backend.shared_dir("another")
    except BackendError as error:
        assert str(error) == "these machines have no folder 'another' in common"


async def check_nasty_paths(backend: Backend) -> None:
    """Whatever the nodes' folders are called: commands, files, programs and a broker work, and nothing is run."""
    base = backend.node_dir("n1")
    await backend.upload("n1", b"content", f"{base}/a file")
    assert await backend.download("n1", f"{base}/a file") == b"content"
    assert (await backend.exec("n1", f"cat {shlex.quote(f'{base}/a file')}")).output == "content"
    await start_echo(backend, "n1")
    for _ in range(2):
        await backend.pause("n1", MAIN)
        await backend.resume("n1", MAIN)
    assert await from_host(backend, "c2", "n1") == backend.address("c2")
    await backend.kill("n1", MAIN)
    test = Test(system="standalone", workload="queue", nodes=1, options={"idle_timeout": 5.0, "bug": ""})
    topology = Topology(test.node_names, test.client_hosts)
    cluster = SYSTEMS.load("standalone").cluster(Deployment(test, Demands(), backend, topology, "secret"))
    await cluster.install()
    await cluster.start()
    assert await cluster.await_healthy(30), await cluster.describe()
    await cluster.stop()


async def check_measure(backend: Backend) -> None:
    """Median times in milliseconds of what a nemesis and an adapter do."""
    await start_echo(backend, *NODES)
    halves = frozenset({("n1", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n1"), ("c1", "n2"), ("n2", "c1")})
    content = bytes(8 << 20)
    figures = {
        "exec": await median(lambda: backend.exec("n1", "true"), 200),
        "process": await median(lambda: backend.process("n1", MAIN), 50),
        "partition": await median(lambda: backend.set_network(halves), 20, lambda: backend.set_network(frozenset())),
        "pause": await median(lambda: backend.pause("n1", MAIN), 20, lambda: backend.resume("n1", MAIN)),
        "upload_8MiB": await median(lambda: backend.upload("n1", content, f"{backend.node_dir('n1')}/x"), 5),
        "download_8MiB": await median(lambda: backend.download("n1", f"{backend.node_dir('n1')}/x"), 5),
        "round_trip": await median(lambda: from_host(backend, "c1", "n2"), 100),
    }
    await backend.set_network(halves)
    figures["dropped"] = await median(backend.dropped, 20)
    figures["heal"] = await median(
        lambda: backend.set_network(frozenset()), 20, lambda: backend.set_network(halves))
    base = backend.node_dir("n1")
    argv = [backend.python("n1"), f"{base}/code/echo.py"]
    figures["kill"] = await median(
        lambda: backend.kill("n1", MAIN), 10, lambda: backend.start("n1", MAIN, argv, f"{base}/logs/broker.log"))
    await backend.kill("n1", MAIN)
    figures["start"] = await median(
        lambda: backend.start("n1", MAIN, argv, f"{base}/logs/broker.log"), 10, lambda: backend.kill("n1", MAIN))
    print(json.dumps({"figures": figures}), flush=True)


async def median(
    call: Callable[[], Awaitable[object]], count: int, between: Callable[[], Awaitable[object]] | None = None
) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - began))
        if between is not None:
            await between()
    return round(sorted(times)[count // 2], 3)


async def check_wait(backend: Backend) -> None:
    """Leave brokers running and a link cut, and wait for the end of standard input or a kill."""
    await start_echo(backend, *NODES)
    await backend.set_network(frozenset({("n1", "n2"), ("c1", "n1")}))
    await packet_checks.let_suffer(backend)
    await backend.pause("n3", MAIN)
    if IN_PLACES:
        assert isinstance(backend, ClientPlaces)
        deaf = [sys.executable, "-c", "import time; print('deaf', flush=True); time.sleep(4711)"]
        program = await asyncio.create_subprocess_exec(*DIES_WITH_US, *backend.place_command("c1"), *deaf,
                                                       stdout=subprocess.PIPE, start_new_session=True)  # fmt: skip
        assert program.stdout is not None and await program.stdout.readline()
    print(json.dumps({"waiting": os.getpid()}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def reset(backend: Backend) -> None:
    """As after provisioning: no broker, no cut, empty folders."""
    await backend.set_network(frozenset())
    for node in NODES:
        await backend.kill(node, MAIN)
        # A mounted disk stays where it is, but empty.
        await backend.exec(node, f"rm -rf {shlex.quote(backend.node_dir(node))}/* 2>/dev/null")


async def main(name: str, run_dir: Path, checks: list[str]) -> None:
    backend: Backend = BACKENDS.load(name)()
    options = json.loads(os.environ.get("STORMPROOF_TEST_OPTIONS", "{}"))
    shared = () if name == "ssh" else ("common",)
    nemesis = tuple(os.environ.get("STORMPROOF_TEST_NEMESIS", "").split())
    test = Test(system="standalone", workload="queue", nodes=len(NODES), options=options, nemesis=nemesis)
    began = time.perf_counter()
    try:
        await backend.provision(test, Topology(test.node_names, test.client_hosts, shared=shared,
                                               client_places=IN_PLACES), run_dir)
        up = time.perf_counter() - began
        for check in checks:
            await CHECKS[check](backend)
            await reset(backend)
    finally:
        began = time.perf_counter()
        await backend.release()
        down = time.perf_counter() - began
        await backend.release()
    print(json.dumps({"up_ms": round(1000 * up), "down_ms": round(1000 * down)}), flush=True)


CHECKS = {
    name.removeprefix("check_"): function
    for module in (sys.modules[__name__], clock_checks, disk_checks, packet_checks, usage_checks)
    for name, function in vars(module).items()
    if name.startswith("check_") and inspect.iscoroutinefunction(function)
}

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
