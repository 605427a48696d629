"""Runs checks of backend ``ssh`` in the network of hosts with sshd: ``ssh_child.py FOLDER CHECK...``.

``FOLDER`` is that of three SSH test hosts (``harness.tools.bench.ssh_test_hosts``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from harness.backends.ssh.backend import SshBackend
from harness.backends.ssh.keys import make_key
from harness.backends.ssh.prepare import prepare
from harness.backends.ssh.remote import clean
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, StormproofError
from stormproof.run_folder import REMOTE_FILE
from stormproof.test import Test

FOLDER = Path(sys.argv[1])
OPTIONS = {"hosts": str(FOLDER / "hosts.list"), "known_hosts": str(FOLDER / "known_hosts")}
STATE = "/var/lib/stormproof"


def run_dir(name: str) -> Path:
    path = FOLDER / "store" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def plan(nemesis: tuple[str, ...] = (), **options: Any) -> Test:
    return Test(system="joram", workload="queue", nodes=3, nemesis=nemesis, options={**OPTIONS, **options})


async def provision(backend: SshBackend, test: Test, name: str) -> None:
    await backend.provision(test, Topology(test.node_names, test.client_hosts), run_dir(name))


@asynccontextmanager
async def provisioned(test: Test, name: str = "run") -> AsyncIterator[SshBackend]:
    backend = SshBackend()
    try:
        await provision(backend, test, name)
        yield backend
    finally:
        await backend.release()


async def refused(test: Test) -> str:
    """The one line with which a test is refused; nothing may have been noted or left."""
    try:
        async with provisioned(test, "refused"):
            raise AssertionError("not refused")
    except StormproofError as error:
        assert "\n" not in str(error), "one line"
        assert not (run_dir("refused") / REMOTE_FILE).exists(), "nothing was done"
        return str(error)


@contextmanager
def changed(path: str, text: str) -> Iterator[None]:
    file = FOLDER / path
    before = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(before)


async def check_refusals() -> None:
    """One clear line each: unknown host key, changed host key, wrong key, host down, no such file, too few hosts."""
    known, hosts = (FOLDER / "known_hosts").read_text(), (FOLDER / "hosts.list").read_text()
    with changed("known_hosts", "\n".join(known.splitlines()[:2]) + "\n"):
        line = await refused(plan())
        assert "n3 (" in line and "its host key ssh-ed25519 SHA256:" in line and "stormproof prepare" in line, line
    first, *rest = known.splitlines()
    with changed("known_hosts", "\n".join([f"{first.split()[0]} {rest[0].split(None, 1)[1]}", *rest]) + "\n"):
        line = await refused(plan())
        assert "n1 (" in line and "its host key has changed" in line and "ssh-keygen" in line, line
    make_key(FOLDER / "stranger")
    with changed("hosts.list", hosts.replace("key=key", "key=stranger")):
        line = await refused(plan())
        assert "accepts none of our keys" in line and "stranger" in line and "authorized_keys" in line, line
    with changed("hosts.list", hosts.replace("key=key", "key=nowhere")):
        line = await refused(plan())
        assert "nowhere: No such file" in line, line
    with changed("hosts.list", hosts.replace("10.78.0.12", "10.78.0.99")):
        line = await refused(plan())
        assert "n2 (tester@10.78.0.99:22) can't be reached" in line and "is it running" in line, line
    with changed("hosts.list", hosts.replace("10.78.0.12", "10.78.0.12:23")):
        line = await refused(plan())
        assert "10.78.0.12:23) can't be reached: Connection refused" in line, line
    with changed("hosts.list", hosts.splitlines()[0] + "\n"):
        line = await refused(plan())
        assert "3 machines need as many hosts, but there are 1: n1" in line, line
    assert "backend ssh needs its hosts" in await refused(plan(hosts=""))
    assert "No such file" in await refused(plan(hosts="/no/such/list"))
    assert "power=nuclear" in await refused(plan(power="nuclear"))


async def check_ssh_config() -> None:
    """An OpenSSH configuration is enough; that it waives the check of host keys changes nothing."""
    config = plan(hosts="", ssh_config=str(FOLDER / "ssh_config"))
    async with provisioned(config) as backend:
        assert (await backend.exec("n3", "hostname; id -u")).output == "n3\n0\n"
    with changed("known_hosts", ""):
        assert "its host key ssh-ed25519 SHA256:" in await refused(config)


async def check_lacks() -> None:
    """Hosts without marker, Python or sudo; they were started so."""
    with changed("hosts.list", trio("n1")):
        line = await refused(Test(system="standalone", workload="queue", nodes=1, options=OPTIONS))
    assert "/etc/stormproof/may-be-broken" in line and "stormproof prepare n1" in line, line
    for number, words in {2: "no Python 3.11 or newer (found: none)", 3: "no Python 3.11 or newer (found: 3.9)",
                          4: "can't become root without a password", 5: "nft not found"}.items():  # fmt: skip
        with changed("hosts.list", trio(f"n{number}")):
            line = await refused(Test(system="standalone", workload="queue", nodes=1, options=OPTIONS))
        assert words in line and line.startswith(f"n{number} ("), line
        assert number == 4 or "apt-get install" in line, line


def trio(*names: str) -> str:
    lines = {line.split()[0]: line for line in (FOLDER / "hosts.list").read_text().splitlines()}
    return "".join(f"{lines[name]}\n" for name in dict.fromkeys(names))


async def check_disk_full() -> None:
    """A full disk is one line; what was begun is taken away, and the host is free again."""
    test = Test(system="standalone", workload="queue", nodes=1, options=OPTIONS)
    with changed("hosts.list", trio("n6")):
        async with provisioned(test, "full") as backend:
            try:
                await backend.upload("n1", bytes(1 << 20), f"{backend.node_dir('n1')}/big")
                raise AssertionError("it took a MiB")
            except StormproofError as error:
                assert "No space left on device" in str(error) and "\n" not in str(error), str(error)
            assert (await backend.exec("n1", "echo on")).output == "on\n"
        async with provisioned(test, "full") as backend:
            left = await backend.exec("n1", f"ls {STATE}/runs/*/*")
            assert left.output == "", left.output


async def check_machine_faults() -> None:
    """Who shares a kernel with others is no machine: its own clock, power and boot are not touched."""
    before = time.time() - time.monotonic()
    for fault, ability, words in (("reboot", "reboot", "it shares this machine's kernel"),
                                  ("power", "power", "--set power=")):  # fmt: skip
        line = await refused(plan((fault,)))
        assert "n1 (" in line and repr(ability) in line and words in line, line
    async with provisioned(plan()) as backend:
        for call in (backend.set_clock("n1", 100.0, 1.0), backend.reboot("n1"), backend.power_off(["n1"])):
            try:
                await call
                raise AssertionError("not refused")
            except StormproofError as error:
                assert "this machine's kernel" in str(error) or "--set power" in str(error), str(error)
        assert (await backend.exec("n1", "echo up")).output == "up\n"
    assert abs(time.time() - time.monotonic() - before) < 1


async def check_power_provider() -> None:
    """Power through a program of one's own; a machine that still answers was not switched off."""
    (FOLDER / "pdu").write_text(f'#!/bin/sh\necho "$@" >> {FOLDER}/switched\n')
    (FOLDER / "pdu").chmod(0o755)
    async with provisioned(plan(("power",), power=f"command={FOLDER}/pdu")) as backend:
        try:
            await backend.power_off(["n2"])
            raise AssertionError("it was off")
        except StormproofError as error:
            assert "n2 (" in str(error) and "still answers after its power was cut" in str(error), str(error)
        assert (await backend.process("n2", MAIN)).state == "dead"
        await backend.power_on(["n2"])
        assert (FOLDER / "switched").read_text() == "off n2\n", "who has power needs none"
        assert (await backend.exec("n2", "echo up")).output == "up\n"


async def check_stall() -> None:
    """While a host is cut off no call outlasts its limit; a connection that stalls is replaced within seconds."""
    async with provisioned(plan()) as backend:
        assert (await backend.exec("n1", "echo one")).output == "one\n"
        others = ["nft", "add table inet wall; add chain inet wall in { type filter hook input priority -20; }; "
                  "add rule inet wall in ip saddr 10.78.0.11 drop"]
        subprocess.run(others, check=True)
        began = time.monotonic()
        try:
            await backend.exec("n1", "echo lost", timeout=3)
            raise AssertionError("an answer through the wall")
        except StormproofError as error:
            assert "n1" in str(error)
        assert time.monotonic() - began < 5
        await asyncio.sleep(2)
        subprocess.run(["nft", "delete table inet wall"], check=True)
        assert (await backend.exec("n1", "echo back", timeout=5)).output == "back\n"
        # One that stalls while nobody looks: the answer comes on a new one, not when the old one revives.
        assert (await backend.exec("n1", "echo quiet")).output == "quiet\n"
        subprocess.run(others, check=True)
        await asyncio.sleep(1.5)
        asyncio.get_running_loop().call_later(0.3, subprocess.run, ["nft", "delete table inet wall"])
        assert (await backend.exec("n1", "echo new", timeout=8)).output == "new\n"


async def check_control_is_never_cut() -> None:
    """With all links cut, the hosts can still be healed; a cut of the harness's own address is refused."""
    async with provisioned(plan()) as backend:
        names = [*backend._control, "c1", "c2", "c3"]
        await backend.set_network(frozenset((a, b) for a in names for b in names if a != b))
        assert (await backend.exec("n1", "echo here")).output == "here\n"
        assert await backend.probe(("n1", "n2"), 0.3) == "cut"
        await backend.set_network(frozenset())
        assert await backend.probe(("n1", "n2"), 2.0) == "open"
    line = await refused(plan(client_addresses="10.78.0.1,127.0.0.1,10.78.0.1"))
    assert "3 different addresses are needed" in line, line


async def check_outside() -> None:
    """Where clients can't have addresses, partitions need them outside, and our own address can't be cut."""
    from harness.backends.ssh import clients

    os.environ["PATH"] = "/usr/bin:/bin"
    clients._may_add = lambda: "only root may add addresses"  # type: ignore[assignment]
    line = await refused(plan(("partition",), clients="beside"))
    assert "only root may add addresses" in line and "clients=outside" in line, line
    async with provisioned(plan(("partition",), clients="outside")) as backend:
        assert backend.address("c1") == backend.address("c3") == "10.78.0.1"
        try:
            await backend.set_network(frozenset({("c1", "n1")}))
            raise AssertionError("cut")
        except StormproofError as error:
            assert "never cut" in str(error), str(error)


async def check_nothing_hangs_on() -> None:
    """The end of a run ends what its shells left, also when it has to connect anew."""
    async with provisioned(plan()) as backend:
        try:
            await backend.exec("n1", "sleep 4712", 0.5)
            raise AssertionError("it ended")
        except StormproofError as error:
            assert "no answer within 0.5 s" in str(error), str(error)
        await backend._control["n2"].close()
    async with provisioned(plan()) as backend:
        for node in ("n1", "n2"):
            assert (await backend.exec(node, f"ps -eo args | grep '^sleep 471[2]'; ls {STATE}/runs")).output == "run\n"


async def check_one_run_a_host() -> None:
    """A host that a run has is no other run's; what a dead run left is removed by its note, and only that."""
    async with provisioned(plan(), "first") as backend:
        note = run_dir("first") / REMOTE_FILE
        noted = json.loads(note.read_text())
        assert set(noted["nodes"]) == {"n1", "n2", "n3"} and "PRIVATE" not in note.read_text()
        line = ""
        try:
            async with provisioned(plan(), "second"):
                raise AssertionError("both have it")
        except StormproofError as error:
            line = str(error)
        assert "in use by run first" in line and "stormproof heal" in line, line
        await backend.start("n1", MAIN, ["sleep", "4711"], f"{backend.node_dir('n1')}/log")
        await backend.set_network(frozenset({("n1", "n2")}))
        assert (await backend.exec("n2", "nft list tables")).output.count("stormproof") == 1
        second = await asyncio.to_thread(clean, run_dir("second"))
        assert second == [] and (await backend.process("n1", MAIN)).state == "running", "its hosts are not the second's"
        done = await asyncio.to_thread(clean, run_dir("first"))
        assert any("removed network" in line for line in done) and any("removed folder" in line for line in done)
        assert any("removed address 10.78.0." in line for line in done) and not note.exists(), done
        assert (await backend.process("n1", MAIN)).state == "dead"
        assert "stormproof" not in (await backend.exec("n2", "nft list tables")).output
        assert await asyncio.to_thread(clean, run_dir("first")) == []


async def check_unreachable_host_is_healed_later() -> None:
    """A note stays until all hosts are clean."""
    backend = SshBackend()
    await provision(backend, plan(), "later")
    # On the way out: what n2 is told to do must not reach it, or it may be clean although its answer is lost.
    wall = "add table inet wall; add chain inet wall out { type filter hook output priority -20; }; " \
           "add rule inet wall out ip daddr 10.78.0.12 tcp dport 22 reject with tcp reset"
    subprocess.run(["nft", wall], check=True)
    try:
        await backend.release()
        raise AssertionError("all clean")
    except StormproofError as error:
        assert "n2 (" in str(error) and "stormproof heal" in str(error), str(error)
    finally:
        subprocess.run(["nft", "delete table inet wall"], check=True)
    assert (run_dir("later") / REMOTE_FILE).exists()
    assert any("n2 (" in line for line in await asyncio.to_thread(clean, run_dir("later")))
    assert not (run_dir("later") / REMOTE_FILE).exists()


async def check_code_is_reused() -> None:
    """The broker is uploaded once; what was damaged meanwhile is uploaded again."""
    from harness.run.deployment import cluster_of
    from harness.run.settings import make_test
    from nodes.systems.reference.code import code_folder, node_hashes

    test = make_test(system="joram", workload="queue", nemesis="none", backend="ssh", nodes=3, time_limit=5, rate=10,
                     seed=1, settings=OPTIONS)  # fmt: skip
    uploads: list[str] = []
    rounds = (("rm -rf {0}", 3), ("", 0), ("echo >> {0}/nodes/stomp.py", 1), ("rm {0}/nodes/reference/wire.py", 1))
    for damage, expected in rounds:
        async with provisioned(test) as backend:
            upload = backend.upload

            async def counted(node: str, content: bytes, path: str, upload: Any = upload) -> None:
                uploads.append(path)
                await upload(node, content, path)

            backend.upload = counted  # type: ignore[method-assign]
            cluster = cluster_of(test, backend, "secret-pass")
            for node in ("n2",) if expected == 1 else test.node_names:
                done = await backend.exec(node, damage.format(code_folder(backend, node)))
                assert done.status == 0, done.output
            uploads.clear()
            await cluster.install()
            assert sum(path.endswith("code.zip") for path in uploads) == expected, (damage, uploads)
            for node in test.node_names:
                check = f"cd {code_folder(backend, node)} && sha256sum --check --status <<'END'\n{node_hashes()}END\n"
                assert (await backend.exec(node, check)).status == 0


def check_prepare() -> None:
    """Nothing is touched without a yes; with it the key is noted, and the host carries the marker."""
    known = FOLDER / "fresh_known_hosts"
    options = {**OPTIONS, "known_hosts": str(known)}
    said: list[str] = []

    def answer(*, key: bool, mark: bool) -> str:
        try:
            prepare(options, ["n1"], lambda asked: said.append(asked) or mark, lambda asked: said.append(asked) or key,
                    said.append)  # fmt: skip
            return ""
        except StormproofError as error:
            assert "\n" not in str(error)
            return str(error)

    assert "was not accepted" in answer(key=False, mark=True) and not known.exists()
    assert "SHA256:" in said[-1] and "n1 (" in said[-1]
    assert "was not prepared" in answer(key=True, mark=False) and known.exists()
    assert "May it be broken" in said[-1]
    said.clear()
    assert answer(key=False, mark=True) == "" and "is prepared" in said[-1], "its key is known by now"
    said.clear()
    assert answer(key=False, mark=False) == "" and len(said) == 1, "nothing left to ask"
    assert "unknown host 'n9'" in refusal(lambda: prepare(options, ["n9"], bool, bool, print))


def check_packages() -> None:
    """What a system needs is installed after a question; a test is refused where it is missing."""
    options = {**OPTIONS, "known_hosts": str(FOLDER / "known_hosts")}
    said: list[str] = []

    def prepared(*packages: str) -> None:
        said.clear()
        prepare(options, ["n1"], lambda asked: bool(said.append(asked)), lambda _: True, said.append, packages)

    prepared("coreutils")
    assert said[0].endswith(" has coreutils"), said
    missing = "no-such-package-of-stormproof"
    line = refusal(lambda: prepared("coreutils", missing))
    assert f"lacks {missing}. Install that there" in said[0] and "coreutils" not in said[0]
    assert line.endswith(f"run there as root: apt-get install --no-install-recommends {missing}")


async def check_missing_packages() -> None:
    """A test of a system whose packages a host lacks ends before it begins, with the command that mends it."""
    from harness.run.settings import make_test

    test = make_test(system="joram", workload="queue", nemesis="none", backend="ssh", nodes=3, time_limit=5, rate=10,
                     seed=1, settings=OPTIONS)  # fmt: skip
    backend = SshBackend()
    topology = Topology(("n1",), ("c1",), packages=("coreutils", "no-such-package-of-stormproof"))
    try:
        await backend.provision(test, topology, run_dir("packages"))
    except BackendError as error:
        assert str(error).endswith("run there: apt-get install --no-install-recommends no-such-package-of-stormproof, "
                                   "or here: stormproof prepare --system NAME"), error  # fmt: skip
    else:
        raise AssertionError("not refused")
    finally:
        await backend.release()


def refusal(call: Any) -> str:
    try:
        call()
    except StormproofError as error:
        return str(error)
    raise AssertionError("not refused")


def check_own_key() -> None:
    """A key of our own is made for hosts that name none, for this user only."""
    os.environ["XDG_CONFIG_HOME"] = str(FOLDER / "config")
    os.environ.pop("SSH_AUTH_SOCK", None)
    said: list[str] = []
    with changed("hosts.list", (FOLDER / "hosts.list").read_text().replace(" key=key", "")):
        line = refusal(lambda: prepare({"hosts": OPTIONS["hosts"]}, ["n2"], bool, lambda _: True, said.append))
    path = FOLDER / "config" / "stormproof" / "id_ed25519"
    assert "accepts none of our keys" in line and str(path) in line, line
    assert "ssh-ed25519 " in said[0] and "authorized_keys" in said[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "File exists" in refusal(lambda: make_key(path))


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}

if __name__ == "__main__":
    signal.alarm(150)
    for name in sys.argv[2:]:
        outcome = CHECKS[name]()
        if asyncio.iscoroutine(outcome):
            asyncio.run(outcome)
        print(name, flush=True)
