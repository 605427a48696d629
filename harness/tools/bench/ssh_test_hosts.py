"""Hosts with sshd on this machine, in namespaces, for tests and benchmarks of ``--backend ssh``.

``python -m harness.tools.bench.ssh_test_hosts FOLDER COUNT [TROUBLE...]`` is pid 1 of new namespaces, so its end, for
any reason, ends the hosts. Each host has separate namespaces and a root folder with this machine's contents, whose
changes stay in memory (an overlay). A bridge in the network namespace of the program connects them; their users must
enter that namespace, too (``SshTestHosts.enter``). The hosts share this machine's kernel, so they refuse faults of
whole machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.backends.launch import find_tool
from harness.backends.ssh.keys import make_key
from stormproof.errors import BackendError

BRIDGE = "farm0"
NETWORK = "10.78.0"
USER = "tester"
_LIMIT_S = 15.0

_OUTSIDE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
            "--propagation", "private")
_HOST = (*_OUTSIDE, "--uts", "--ipc")

# $1 the host's name, $2 its folder, $3 its defect.
_INIT = """
set -e
mount -t tmpfs -o mode=755 none "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=755 none run
mount -t tmpfs -o mode=1777 none tmp
mkdir -p run/sshd root/.ssh home/tester/.ssh etc/stormproof var/lib/stormproof etc/sudoers.d
hostname "$1"
cp "$2/../hosts" etc/hosts
grep -q ^tester: etc/passwd || echo "tester:x:4242:4242::/home/tester:/bin/sh" >> etc/passwd
grep -q ^tester: etc/shadow || echo "tester:*:19000::::::" >> etc/shadow
cp "$2/../key.pub" root/.ssh/authorized_keys
cp "$2/../key.pub" home/tester/.ssh/authorized_keys
chmod 700 root/.ssh home/tester/.ssh
chown -R 4242 home/tester
chown 0:0 root
case "$3" in
unmarked) ;;
*) echo "one of the test hosts" > etc/stormproof/may-be-broken ;;
esac
case "$3" in
nosudo) rm -f etc/sudoers.d/tester ;;
*) echo "tester ALL=(ALL) NOPASSWD: ALL" > etc/sudoers.d/tester; chmod 440 etc/sudoers.d/tester ;;
esac
case "$3" in
nopython) rm -f usr/bin/python3* usr/local/bin/python3* ;;
oldpython) rm -f usr/bin/python3* usr/local/bin/python3*
  printf '#!/bin/sh\\necho python 3 9 /usr/bin/python3\\n' > usr/bin/python3; chmod 755 usr/bin/python3 ;;
nonft) rm -f usr/sbin/nft ;;
fulldisk) mount -t tmpfs -o size=64k none var/lib/stormproof ;;
esac
cp "$2/../$1.hostkey" etc/stormproof/host_key
chmod 600 etc/stormproof/host_key
trap '' CHLD
exec chroot . /usr/sbin/sshd -D -e -f /dev/null -h /etc/stormproof/host_key -o PidFile=none -o UsePAM=no \\
  -o PasswordAuthentication=no -o PermitRootLogin=prohibit-password -o StrictModes=no -o MaxStartups=100
"""


@dataclass(frozen=True)
class SshTestHosts:
    """Running hosts ``n1``...; ``folder`` holds the key, the known hosts and the files that name the hosts."""

    folder: Path
    pid: int
    count: int

    @property
    def enter(self) -> list[str]:
        """The prefix of a command that is to reach the hosts; it changes only the network namespace."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    @property
    def options(self) -> dict[str, str]:
        """The settings of backend ``ssh`` for these hosts."""
        return {"hosts": str(self.folder / "hosts.list"), "known_hosts": str(self.folder / "known_hosts")}

    def address(self, number: int) -> str:
        """Return the address of host ``n<number>``."""
        return f"{NETWORK}.{10 + number}"

    def inside(self, number: int) -> list[str]:
        """Return the prefix of a command that is to run on host ``n<number>`` without SSH."""
        holder = _children(_children(self.pid)[0])[number - 1]
        return ["nsenter", f"--target={_children(holder)[0]}", "--all", "--root", "--wd"]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def why_not() -> str | None:
    """Return why test hosts cannot be created here; None when they can."""
    if os.geteuid() != 0:
        return "only root can make hosts with sshd in namespaces"
    missing = [tool for tool in ("sshd", "unshare", "nsenter", "ip", "nft") if not find_tool(tool)]
    return f"{', '.join(missing)} not found" if missing else None


@contextmanager
def running_hosts(folder: Path, count: int = 3, troubles: Sequence[str] = (),
                  user: str = USER) -> Iterator[SshTestHosts]:
    """Yield hosts that exist until the end of the context; ``troubles`` lists the defect of each (see ``_INIT``).

    Raises:
        BackendError: they cannot be created here.
    """
    reason = why_not()
    if reason:
        raise BackendError(reason)
    _write_files(folder, count, user)
    process = subprocess.Popen(
        [*_OUTSIDE, sys.executable, "-m", "harness.tools.bench.ssh_test_hosts", str(folder), str(count), *troubles],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise BackendError("the hosts with sshd did not come up")
        yield SshTestHosts(folder, process.pid, count)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()


def _write_files(folder: Path, count: int, user: str) -> None:
    """Write keys, known hosts and the lists that name the hosts."""
    make_key(folder / "key")
    known, plain, config = [], [], []
    for number in range(1, count + 1):
        address = f"{NETWORK}.{10 + number}"
        public = make_key(folder / f"n{number}.hostkey")
        known.append(f"{address} {' '.join(public.split()[:2])}")
        plain.append(f"n{number} {user}@{address} key=key")
        config.append(
            f"Host n{number}\n  HostName {address}\n  User {user}\n  Port 22\n  UserKnownHostsFile /dev/null\n"
            f"  StrictHostKeyChecking no\n  IdentityFile \"{folder / 'key'}\"\n  IdentitiesOnly yes\n"
        )
    names = [f"{NETWORK}.{10 + number} n{number}" for number in range(1, count + 1)]
    for name, lines in (("known_hosts", known), ("hosts.list", plain), ("ssh_config", config),
                        ("hosts", ["127.0.0.1 localhost", *names])):
        (folder / name).write_text("\n".join(lines) + "\n")


def _serve(folder: Path, count: int, troubles: Sequence[str]) -> None:
    """Create bridge and hosts, report that they are ready, and wait for the end of standard input."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    hosts = []
    for number in range(1, count + 1):
        (folder / f"n{number}").mkdir(exist_ok=True)
        log = (folder / f"n{number}.log").open("wb")
        trouble = troubles[number - 1] if number <= len(troubles) else "-"
        init = ("sh", "-c", _INIT, "sh", f"n{number}", str(folder / f"n{number}"), trouble)
        hosts.append(subprocess.Popen([*_HOST, *init], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True))
    for number, host in enumerate(hosts, 1):
        _await_log(folder / f"n{number}.log", b"Server listening")
        _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        _run("ip", "link", "set", f"v{number}", "master", BRIDGE, "up")
        inside = ("nsenter", f"--net=/proc/{host.pid}/ns/net", "ip")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "address", "add", f"{NETWORK}.{10 + number}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
    print("ready", flush=True)
    sys.stdin.read()


def _await_log(path: Path, words: bytes) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while words not in path.read_bytes():
        if time.monotonic() > deadline:
            print(path.read_text(errors="replace"), file=sys.stderr)
            raise BackendError(f"{path.stem} did not start its sshd")
        time.sleep(0.02)


def _run(*command: str) -> None:
    path = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
    subprocess.run(command, check=True, timeout=_LIMIT_S, env=path)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
