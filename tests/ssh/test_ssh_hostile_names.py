"""Names in a stranger's run folder or list of hosts, in scripts that root runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness.backends import netem
from harness.backends.ssh import facts, remote
from harness.backends.ssh.hosts import parse_list
from harness.backends.ssh.power import PowerSwitch
from stormproof.contracts.backend import LinkConditions
from stormproof.contracts.topology import Helper, Topology
from stormproof.errors import UsageError

HOSTILE = "r;touch ${MARK};$(touch ${MARK})`touch ${MARK}`'\""


def run(script: str, folder: Path) -> bool:
    """Whether a host's root shell would run a name that is in a script; its paths are moved below ``folder``."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("nft", "tc", "ip"):
        (tools / tool).write_text("#!/bin/sh\ncat >/dev/null\n")
        (tools / tool).chmod(0o755)
    script = script.replace("/etc/stormproof", f"{folder}/etc").replace("/var/lib/stormproof", f"{folder}/lib")
    mark = folder / "executed"
    subprocess.run(["sh", "-c", script.replace(facts.MARKER, f"{folder}/etc/may-be-broken")], check=False, cwd=folder,
                   stdin=subprocess.DEVNULL, capture_output=True,
                   env={"PATH": f"{tools}:/usr/bin:/bin", "MARK": str(mark)})  # fmt: skip
    return mark.exists()


def test_a_run_folder_of_a_stranger_runs_nothing_on_a_host(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "may-be-broken").touch()
    noted = {"run": HOSTILE, "known_hosts": "k", "nodes": {}, "clients": None, "power": ""}
    (tmp_path / "remote.json").write_text(json.dumps(noted))
    found = remote.Remote.read(tmp_path)
    assert found is not None
    assert not run(remote.take_script(found, "n1"), tmp_path)
    folder = tmp_path / "lib/runs" / HOSTILE / "n1"
    assert folder.exists()
    assert not run(remote.clean_script(found, "n1"), tmp_path)
    assert not folder.exists()


def test_the_name_of_a_device_is_a_word(tmp_path: Path) -> None:
    queues = netem.NodeShaping({"n2": LinkConditions(loss=0.5)}, {"c1": LinkConditions(delay=0.1)})
    assert not run(queues.script(HOSTILE, {"n2": "10.0.0.2", "c1": "10.0.0.9"}), tmp_path)
    assert not run(netem.counts_script(HOSTILE), tmp_path)


def test_who_cuts_power_is_called_with_the_name_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "a program"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
    program.chmod(0o755)
    (host,) = parse_list(f"{json.dumps(HOSTILE)} root@192.0.2.1\n".replace("$", "\\$").replace("`", "\\`"), tmp_path)
    PowerSwitch("command", str(program)).switch(host.name, on=False)
    assert (tmp_path / "told").read_text() == f"off\n{host.name}\n"


@pytest.mark.parametrize("topology", [
    lambda: Topology(("n1",), ("c1",), (Helper("a\nlink delete eth0", "x"),)),
    lambda: Topology(("n1",), ("c1",), networks=("b c",)), lambda: Topology(("n1",), ("c1",), packages=("-o", "x y")),
    lambda: Topology(("n1",), ("c1",), addresses=("a;b",)), lambda: Topology(("n1",), ("c1",), shared=("../x",)),
    lambda: Topology(("n1",), ("c1",), capabilities=("NET_RAW x",)),
])  # fmt: skip
def test_machines_networks_packages_have_plain_names(topology: object) -> None:
    with pytest.raises(UsageError, match=r"can't be the name of an? "):
        topology()  # type: ignore[operator]
