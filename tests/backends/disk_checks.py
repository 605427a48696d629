"""Checks of disks that fail and of power cuts, which `backend_child.py` runs on a provisioned backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shlex

from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.admin_connection import AdminConnection
from stormproof.contracts.backend import DEAD, Backend, DiskFault, Disks, DiskUse, KeepsSetup, PowerControl, Shells
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, Cluster, Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.shell_system import Machine, ShellCluster, ShellSystem
from stormproof.test import Test

NODES = ("n1", "n2", "n3")

# Writes numbers, one a line, and confirms each: once it is synced, or as soon as it is written. "new" does so with a
# file of its own for each, written beside, synced and renamed.
WRITER = """
import mmap, os, sys
folder, how = sys.argv[1:]
place = os.open(folder, os.O_RDONLY)
log = os.open(folder + "/log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
os.fsync(log)
os.fsync(place)
n = 0
if how == "mapped":
    os.ftruncate(log, 1 << 20)
    os.fsync(log)
    memory = mmap.mmap(log, 1 << 20)
while n < 100000:
    n += 1
    line = b"%d\\n" % n
    if how == "new":
        file = os.open(folder + "/new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, line)
        os.fsync(file)
        os.close(file)
        os.rename(folder + "/new", folder + "/last")
        os.fsync(place)
    elif how == "mapped":
        memory[:len(line)] = line
    else:
        os.write(log, line)
        if how == "synced":
            os.fdatasync(log)
    print(n, flush=True)
"""


# As daemons do: it leaves the session of the shell that starts it, with all that it inherits.
DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    for name in (sys.argv[1], sys.argv[1] + ".new"):
        with open(name, "w") as file:
            file.write("done")
    os.rename(sys.argv[1] + ".new", sys.argv[1] + ".done")
"""

# Threads that map a file, write to it and unmap it, and others that open files meanwhile. Calls through ctypes run
# without Python's lock.
MAPPER = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size, both = 1 << 18, mmap.PROT_READ | mmap.PROT_WRITE
def use(fd, flags):
    memory = libc.mmap(None, size, both, flags, fd, 0)
    libc.memset(memory, 1, size)
    libc.munmap(memory, size)
def map_file(number):
    file = os.open(f"{sys.argv[1]}/mapped{number}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size)
    for _ in range(400):
        use(file, mmap.MAP_SHARED)
def open_file(number):
    while any(each.is_alive() for each in mappers):
        os.close(os.open(f"{sys.argv[1]}/opened{number}", os.O_RDWR | os.O_CREAT))
def map_memory(_):
    while any(each.is_alive() for each in mappers):
        use(-1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
mappers = [threading.Thread(target=map_file, args=(number,)) for number in range(2)]
others = [threading.Thread(target=each, args=(number,)) for number, each in enumerate([map_memory] + 12 * [open_file])]
for each in mappers + others:
    each.start()
for each in mappers + others:
    each.join()
print("all threads have ended", flush=True)
"""


async def start_writer(backend: Backend, node: str, how: str, confirmed: int = 20) -> None:
    """Let a program write until it has confirmed so much."""
    assert isinstance(backend, Shells)
    base = backend.node_dir(node)
    await backend.upload(node, WRITER.encode(), f"{base}/writer.py")
    await backend.exec(node, f"rm -f {shlex.quote(base)}/out")
    await backend.start(node, MAIN, [backend.python(node), f"{base}/writer.py", backend.data_dir(node), how],
                        f"{base}/out")
    for _ in range(500):
        if await last_line(backend, node, f"{base}/out") >= confirmed:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{how}: {await backend.exec(node, f'tail {base}/out')}")


async def last_line(backend: Backend, node: str, path: str) -> int:
    """The number in the last whole line of a file; 0 where there is none."""
    assert isinstance(backend, Shells)
    found = await backend.exec(node, f"tail -c 20 {shlex.quote(path)} 2>/dev/null | tr -d '\\000'")
    lines = found.output.rpartition("\n")[0].split("\n")
    return int(lines[-1]) if lines[-1].isdigit() else 0


async def outcome(backend: Backend, node: str, how: str, file: str = "log") -> tuple[int, int]:
    """What was confirmed, and what is there."""
    confirmed = await last_line(backend, node, f"{backend.node_dir(node)}/out")
    return confirmed, await last_line(backend, node, f"{backend.data_dir(node)}/{file}")


async def check_power(backend: Backend) -> None:
    """What a program has synced survives a power cut of its machine, what it has not is lost."""
    assert isinstance(backend, PowerControl) and isinstance(backend, Shells)
    for node, how in zip(NODES, ("synced", "new", "mapped"), strict=True):
        await start_writer(backend, node, how)
    boots = [await backend.boot(node) for node in NODES]
    await backend.exec("n1", "setsid sleep 1001 >/dev/null 2>&1 </dev/null &")
    await backend.power_off(NODES)
    assert [(await backend.process(node, MAIN)).state for node in NODES] == ["dead"] * 3
    left = await backend.exec("n1", "ps -eo pid,ppid,pgid,args")
    assert "1001" not in left.output, left.output
    try:
        await backend.start("n1", MAIN, ["true"], f"{backend.node_dir('n1')}/x")
        raise AssertionError("a program started without power")
    except BackendError as error:
        assert "it has no power" in str(error)
    await backend.power_on(NODES)
    assert not set(boots) & {await backend.boot(node) for node in NODES}
    confirmed, kept = await outcome(backend, "n1", "synced")
    assert 20 <= confirmed <= kept, (confirmed, kept)
    confirmed, kept = await outcome(backend, "n2", "new", "last")
    assert 20 <= confirmed <= kept, (confirmed, kept)
    confirmed, kept = await outcome(backend, "n3", "mapped")
    assert confirmed >= 20 and kept == 0, (confirmed, kept)
    lost = 0
    for _ in range(4):  # luck may let some of it reach the disk
        await start_writer(backend, "n3", "written")
        await backend.power_off(["n3"])
        await backend.power_on(["n3"])
        confirmed, kept = await outcome(backend, "n3", "written")
        lost += kept < confirmed
        await backend.exec("n3", f"rm -f {shlex.quote(backend.data_dir('n3'))}/*")
    assert lost, "a program that does not sync loses what it wrote"


class Filed(ShellSystem):
    """Its files are on the disk that loses power, in folders that nothing else makes."""

    name = "filed"

    def command(self, machine: Machine, program: str) -> list[str]:
        return ["true"]

    def connection(self, cluster: ShellCluster) -> QueueConnection:
        raise AssertionError("nobody connects")

    def files(self, machine: Machine) -> dict[str, str]:
        return {f"{machine.data}/version/{number}/myid": f"{machine.name} {number}" for number in range(8)} | {
            "data/it's/here": machine.name}


async def check_adapter_files(backend: Backend) -> None:
    """The files of an adapter survive the first power cut, whatever luck leaves of what is not synced."""
    assert isinstance(backend, PowerControl)
    test = Test(system="filed", workload="queue", nodes=len(NODES))
    cluster = Filed().cluster(Deployment(test, Demands(), backend, Topology(test.node_names, test.client_hosts)))
    await cluster.install()
    await backend.power_off(NODES)
    await backend.power_on(NODES)
    for node in NODES:
        for path, content in Filed().files(cluster.machine(node)).items():
            target = path if path.startswith("/") else f"{backend.node_dir(node)}/{path}"
            assert (await backend.download(node, target)).decode() == content


async def check_disk(backend: Backend) -> None:
    """Each fault of a disk shows to programs, is counted if they are the system's, and is gone when it is healed."""
    assert isinstance(backend, Disks) and isinstance(backend, Shells)
    data = shlex.quote(backend.data_dir("n1"))
    await backend.upload("n1", bytes(5000), f"{backend.data_dir('n1')}/placed")
    assert (await backend.exec("n1", f"{_dd(backend, 'placed-too')} && sync -f {data}")).status == 0
    assert await backend.disk_use("n1") == DiskUse(0, 0, 0, 0), "what the harness writes is not the system's"
    for kind in ("corrupt", "empty", "lose-unsynced"):
        before = (await backend.exec("n1", f"cat {data}/* | md5sum")).output
        await backend.set_disk("n1", DiskFault(kind))
        assert await backend.disk_fault_count("n1") == 0, kind
        await backend.set_disk("n1", None)
        assert kind != "corrupt" or (await backend.exec("n1", f"cat {data}/* | md5sum")).output == before
    assert "1+0 records out" in await written(backend) and await backend.probe_disk("n1") == "ok"
    use = await backend.disk_use("n1")
    assert use.files == 1 and use.writes and use.syncs, use
    daemon = f"{backend.data_dir('n1')}/daemon"
    await backend.exec("n1", shlex.join([backend.python("n1"), "-c", DAEMON, daemon]))
    for _ in range(500):
        if (await backend.exec("n1", f"cat {shlex.quote(daemon)}.done 2>&1")).output == "done":
            break
        await asyncio.sleep(0.02)
    assert (await backend.disk_use("n1")).files == 3, "a daemon that detaches from a shell of ours is the system's"
    await backend.exec("n1", f"rm -f {shlex.quote(daemon)} {shlex.quote(daemon)}.done")
    for kind, word, probe in (("full", "No space left", "failed"), ("write-error", "Input/output error", "failed"),
                              ("sync-error", "Input/output error", "failed"), ("slow", "1+0 records out", "slow")):
        await backend.set_disk("n1", DiskFault(kind, 0.05))
        assert await backend.disk_fault_count("n1") == 0
        assert await backend.probe_disk("n1") == probe, kind
        assert word in (await backend.exec("n1", _dd(backend, "file"))).output, kind
        assert await backend.disk_fault_count("n1") == 0, "neither the probe nor the harness is counted"
        assert word in await written(backend), kind
        assert await backend.disk_fault_count("n1") >= 1
        assert await backend.probe_disk("n2") == "ok", "another machine's disk is right"
        await backend.set_disk("n1", None)
        assert "1+0 records out" in await written(backend) and await backend.probe_disk("n1") == "ok", kind
        assert await backend.disk_fault_count("n1") >= 1, "the latest fault's count stays"
    before = (await backend.exec("n1", f"md5sum < {data}/file")).output
    await backend.set_disk("n1", DiskFault("corrupt"))
    await backend.set_disk("n1", None)
    assert (await backend.exec("n1", f"md5sum < {data}/file")).output != before
    assert await backend.disk_fault_count("n1") == 1
    for kind, size in (("bits", "20000"), ("truncate", "")):
        await written(backend)
        before = (await backend.exec("n1", f"md5sum < {data}/file")).output
        await backend.set_disk("n1", DiskFault(kind, files="**/other", bits=2))
        assert await backend.disk_fault_count("n1") == 0 and not (await backend.disk_use("n1")).damaged
        assert (await backend.exec("n1", f"md5sum < {data}/file")).output == before, "it does not match"
        await backend.set_disk("n1", DiskFault(kind, files="**/file", bits=2))
        await backend.set_disk("n1", None)
        assert (await backend.exec("n1", f"md5sum < {data}/file")).output != before
        assert await backend.disk_fault_count("n1") == 1
        damaged = (await backend.disk_use("n1")).damaged
        assert len(damaged) == (2 if size else 1) and all(place.startswith("file: ") for place in damaged)
        found = (await backend.exec("n1", f"stat -c %s {data}/file")).output.strip()
        assert found == size or (not size and int(found) < 20000)
    await backend.set_disk("n1", DiskFault("empty"))
    await backend.set_disk("n1", None)
    assert (await backend.exec("n1", f"ls -A {data}")).output == ""
    for kind in ("lose-unsynced", "torn"):
        await lost_when_killed(backend, kind)


async def check_setup(backend: Backend) -> None:
    """What was written before the load is on the disk at a loss, unless it is to be lost; what is old by then, too."""
    assert isinstance(backend, Disks) and isinstance(backend, KeepsSetup) and isinstance(backend, Shells)
    for options, wait, survives in (({"disk_setup": "lost"}, 0.0, False), ({}, 0.0, True),
                                    ({"disk_setup": "lost", "disk_write_back": 0.3}, 1.0, True)):  # fmt: skip
        await start_writer(backend, "n2", "written")
        before, _ = await outcome(backend, "n2", "written")
        await backend.load_begins(options)
        await asyncio.sleep(wait)
        await backend.set_disk("n2", DiskFault("lose-unsynced"))
        await backend.kill("n2", MAIN)
        confirmed, kept = await outcome(backend, "n2", "written")
        assert confirmed >= before > 0 and (kept >= before) is survives, (options, before, kept)
        await backend.set_disk("n2", None)
        await backend.exec("n2", f"rm -f {shlex.quote(backend.data_dir('n2'))}/*")


async def check_mapped(backend: Backend) -> None:
    """The disk does not wait for locks of a process's memory, which a thread that unmaps a file holds meanwhile."""
    assert isinstance(backend, Shells)
    base = backend.node_dir("n1")
    await backend.upload("n1", MAPPER.encode(), f"{base}/mapper.py")
    await backend.start("n1", MAIN, [backend.python("n1"), f"{base}/mapper.py", backend.data_dir("n1")], f"{base}/out")
    for _ in range(600):
        said = (await backend.exec("n1", f"cat {shlex.quote(base)}/out")).output
        if said or (await backend.process("n1", MAIN)).state == DEAD:
            break
        await asyncio.sleep(0.1)
    assert said == "all threads have ended\n", said or "they wait for each other"


def _dd(backend: Backend, name: str) -> str:
    return f"dd if=/dev/zero of={shlex.quote(backend.data_dir('n1'))}/{name} bs=20000 count=1 conv=fsync 2>&1"


async def written(backend: Backend) -> str:
    """What a program of the system says that writes a file of n1 and syncs it."""
    assert isinstance(backend, Shells)
    log = f"{backend.node_dir('n1')}/dd"
    await backend.exec("n1", f"rm -f {shlex.quote(log)}")
    await backend.start("n1", "dd", ["sh", "-c", _dd(backend, "file")], log)
    for _ in range(500):
        if (await backend.process("n1", "dd")).state == DEAD:
            return (await backend.exec("n1", f"cat {shlex.quote(log)}")).output
        await asyncio.sleep(0.02)
    raise AssertionError("it does not end")


async def check_elsewhere(backend: Backend) -> None:
    """The folders beside the disk that a program writes to are found: files that it keeps open, and files that it
    writes and closes; not what it prints to, nor what the harness writes."""
    assert isinstance(backend, Disks) and isinstance(backend, Shells)
    base = backend.node_dir("n1")
    assert await backend.writes_to("n1") == ()
    await backend.upload("n1", b"placed", f"{base}/placed/file")
    await backend.exec("n1", "mkdir -p /var/tmp/stormproof-elsewhere")
    script = ("mkdir -p jobs closed; exec 5>jobs/log 6>/var/tmp/stormproof-elsewhere/log 7>data/log; "
              "mkdir twelve; exec 12>twelve/log; echo a >closed/x; "
              "echo b >&5; echo c; echo d >&7; echo written; exec sleep 1000")  # fmt: skip
    await backend.start("n1", MAIN, ["bash", "-c", script], f"{base}/broker.log")
    for _ in range(300):
        if "written" in (await backend.exec("n1", f"cat {shlex.quote(base)}/broker.log")).output:
            break
        await asyncio.sleep(0.05)
    found = await backend.writes_to("n1")
    assert set(found) == {"closed", "jobs", "twelve", "/var/tmp/stormproof-elsewhere"}, found
    assert (await backend.disk_use("n1")).files == 1
    async with contextlib.aclosing(backend.usage("n1", 0.2)) as told:  # type: ignore[attr-defined]
        await backend.exec("n1", "head -c 3000000 /dev/urandom >/var/tmp/stormproof-elsewhere/log; "
                                 f"head -c 2000000 /dev/urandom >{shlex.quote(base)}/jobs/log")  # fmt: skip
        for _ in range(300):
            if ((await anext(told)).disk or 0) >= 5_000_000:
                break
        else:
            raise AssertionError("what is elsewhere does not count")
    await backend.kill("n1", MAIN)
    await backend.exec("n1", "rm -r /var/tmp/stormproof-elsewhere")


async def lost_when_killed(backend: Backend, kind: str) -> None:
    """A program that is killed loses what it had not synced, and that alone, and only while the disk is wrong."""
    assert isinstance(backend, Disks) and isinstance(backend, Shells)
    for how in ("synced", "written"):
        await start_writer(backend, "n2", how)
        await backend.kill("n2", MAIN)
        confirmed, kept = await outcome(backend, "n2", how)
        assert confirmed <= kept, "the kernel keeps what it has when a program ends"
        await backend.exec("n2", f"rm -f {shlex.quote(backend.data_dir('n2'))}/*")
        await start_writer(backend, "n2", how)
        await backend.set_disk("n2", DiskFault(kind))
        await backend.kill("n2", MAIN)
        assert await backend.disk_fault_count("n2") == 1
        confirmed, kept = await outcome(backend, "n2", how)
        assert (confirmed <= kept) == (how == "synced"), (kind, how, confirmed, kept)
        await backend.set_disk("n2", None)
        await backend.exec("n2", f"rm -f {shlex.quote(backend.data_dir('n2'))}/*")


async def check_power_cuts(backend: Backend) -> None:
    """A standalone broker under load loses its power again and again: what it has confirmed must be there each time.

    STORMPROOF_TEST_CUTS says how often at most, STORMPROOF_TEST_BUG which bug is switched on. Prints what was confirmed
    and how many cuts it took until some was lost, 0 for never.
    """
    assert isinstance(backend, PowerControl)
    options = {"idle_timeout": 5.0, "bug": os.environ.get("STORMPROOF_TEST_BUG", "")}
    test = Test(system="standalone", workload="queue", nodes=1, options=options)
    cluster = SYSTEMS.load("standalone").cluster(
        Deployment(test, Demands(), backend, Topology(test.node_names, test.client_hosts), "secret"))
    await cluster.install()
    await cluster.start()
    assert await cluster.await_healthy(30), await cluster.describe()
    rng = random.Random(7)
    confirmed: list[int] = []
    lost_at, cuts = 0, int(os.environ["STORMPROOF_TEST_CUTS"])
    for cut in range(1, cuts + 1):
        sending = [asyncio.create_task(send_until_refused(cluster, confirmed, rng)) for _ in range(4)]
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        await backend.power_off(["n1"])
        await asyncio.gather(*sending)
        await backend.power_on(["n1"])
        await cluster.start_node("n1")
        there = await depth(cluster)
        if there is None or there < len(confirmed):
            lost_at = cut
            break
    if not lost_at:
        missing = set(confirmed) - set(await read_all(cluster, there or 0))  # what was not confirmed may be there, too
        assert not missing, missing
        await cluster.stop()
    print(json.dumps({"cuts": cut, "confirmed": len(confirmed), "lost_at": lost_at}), flush=True)


async def send_until_refused(cluster: Cluster, confirmed: list[int], rng: random.Random) -> None:
    """Send numbers, one after the other, and note each that is confirmed."""
    (address,) = cluster.client_addresses()
    connection = AdminConnection(*address, cluster.login, cluster.passcode, privileged=False)
    try:
        while True:
            number = rng.getrandbits(60)
            await connection.request({"destination": "/queue/q"}, b"%d" % number, 10.0)
            confirmed.append(number)
    except (OSError, TimeoutError, EOFError, ProtocolError):
        connection.close()


async def depth(cluster: Cluster) -> int | None:
    """How many messages the broker has; None when it does not come up."""
    if not await cluster.await_healthy(5):
        return None
    depths = await cluster.depths() or {}
    return sum(depths.values())


async def read_all(cluster: Cluster, depth: int) -> list[int]:
    """All numbers that are in the queue, which has so many messages."""
    (address,) = cluster.client_addresses()
    reader, writer = await asyncio.open_connection(*address)
    for frame in (Frame("CONNECT", {"accept-version": "1.2", "host": "/", "login": cluster.login,
                                    "passcode": cluster.passcode}),
                  Frame("SUBSCRIBE", {"id": "0", "destination": "/queue/q", "ack": "auto"})):
        writer.write(encode(frame))
    parser, found = Parser(), []
    while len(found) < depth:
        frames = parser.feed(await asyncio.wait_for(reader.read(1 << 16), 30))
        found += [int(frame.body) for frame in frames if isinstance(frame, Frame) and frame.command == "MESSAGE"]
    writer.close()
    return found
