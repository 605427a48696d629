"""Clients that are programs, or whose library can't bind, in networks of their own: every cut hits them."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system_runs import HERE, backends, run_of, stormproof

REAL = [backend for backend in backends(slow="docker") if backend != "sim"]
BEANSTALKD = f"{HERE / 'exec_beanstalkd.py'}:Placed"
pytestmark = pytest.mark.requirement("H3", part=True)


@pytest.mark.parametrize("backend", REAL)
@pytest.mark.skipif(not shutil.which("beanstalkd"), reason="apt-get install beanstalkd")
def test_systems_check_proves_where_they_connect_from(backend: str) -> None:
    """A program, a Python client as a program, a connection here that is not bound; outside of places, it fails."""
    def check(client: str) -> dict[str, str]:
        ran = stormproof("systems", "check", BEANSTALKD, "--backend", backend, "--json", "--set", f"client={client}")
        items = json.loads(ran.out)["items"]
        assert {item["status"] for item in items if item["name"] != "connect-from"} == {"ok", "skipped"}, items
        (found,) = (item for item in items if item["name"] == "connect-from")
        return dict(found)

    with ThreadPoolExecutor() as pool:
        found = dict(zip(clients := ("program", "library", "here", "outside"), pool.map(check, clients), strict=True))
    assert {found[client]["status"] for client in ("program", "library", "here")} == {"ok"}, found
    assert found["outside"]["status"] == "failed" and "it has a connection from" in found["outside"]["told"]


@pytest.mark.parametrize("backend", REAL)
def test_a_partition_hits_them(tmp_path: Path, backend: str) -> None:
    """The cut counts packets of clients that can't bind, and none of those that stand outside."""
    def dropped(client: str) -> int:
        ran = run_of(f"{HERE / 'placed_nats.py'}:PlacedNats", tmp_path / client, backend, "--nemesis", "partition",
                     "--time-limit", "14", "--rate", "100", "--seed", "3", client=client, replicas=3,
                     partition_kind="one", client_order="primary-first")  # fmt: skip
        assert ran.verdict["verdict"] != "invalid", ran.out + ran.err
        (healed,) = [line for line in ran.faults() if line["phase"] == "heal"]
        return sum(packets for link, packets in healed["evidence"]["dropped"].items() if "c" in link)

    with ThreadPoolExecutor() as pool:
        library, outside = pool.map(dropped, ("library", "outside"))
    assert library > 0 and outside == 0


@pytest.mark.parametrize(("backend", "told"), [
    ("ssh", "clients of placed-beanstalkd can't bind to an address, so they need separate networks"),
    ("sim", "has no programs that can be simulated"),
])
def test_where_there_are_no_places_they_are_refused(tmp_path: Path, backend: str, told: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("h1 root@192.0.2.1\n")
    more = ["--hosts", str(hosts)] if backend == "ssh" else []
    ran = run_of(BEANSTALKD, tmp_path / "store", backend, "--nemesis", "kill", *more)
    assert ran.status == 3 and told in ran.err and ran.err.count("\n") == 1, ran.err
