"""Tests whose servers and settings come from a descriptor (HA Joram, 4.6.3)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from joram_lines import DESCRIPTOR
from typer.testing import CliRunner

from harness.cli.app import app
from harness.reference.from_descriptor import described
from harness.run.describe import create_run
from harness.run.settings import make_test
from harness.sim.run import simulate
from stormproof.errors import UsageError
from stormproof.run_folder import read_run

PROPERTIES = ('<property name="detection_timeout" value="0.6" /><property name="heartbeat_interval" value="0.15" />'
              '<property name="ack" value="majority" /><property name="idle_timeout" value="3" />'
              '<property name="nbClusterExpected" value="3" />')  # fmt: skip


def file_with(folder: Path, text: str) -> Path:
    path = folder / "a3servers.xml"
    path.write_text(text)
    return path


def of_two(text: str) -> str:
    """A second cluster of the same kind, and a single server."""
    cluster = re.search(r"<cluster.*</cluster>", text, re.DOTALL)
    single = re.search(r'<server id="2".*?</server>', text, re.DOTALL)
    assert cluster is not None and single is not None
    second = cluster[0].replace('id="0" name="s0"', 'id="1" name="s1"').replace("1630", "1640").replace("256", "266")
    local = single[0].replace('id="2"', 'id="2" name="s2"').replace("1630", "1650").replace("256", "276")
    return text.replace("</config>", f"{second}{local}</config>")


@pytest.mark.requirement("J13", part=True)
def test_a_test_has_the_servers_and_the_timings_of_a_descriptor(tmp_path: Path) -> None:
    path = file_with(tmp_path, DESCRIPTOR.read_text().replace('name="s0">', f'name="s0">{PROPERTIES}'))
    found = described(path, "queue")
    planned = make_test(system=found.system, workload="queue", nemesis="none", backend="sim", nodes=found.nodes,
                        time_limit=2.0, rate=20.0, seed=1, settings={**found.settings, "ack": "all"})  # fmt: skip
    run_dir = create_run(planned, "test", tmp_path)
    simulate(run_dir)
    test = read_run(run_dir)["test"]
    wanted = {"detection_timeout": 0.6, "heartbeat_interval": 0.15, "ack": "all", "idle_timeout": 3.0}
    assert (test["system"], test["nodes"]) == ("joram", 3)
    assert wanted.items() <= test["options"].items() and test["options"]["nb_cluster_expected"] == 3
    log = (run_dir / "logs" / "n1.log").read_text()
    assert "expected=3" in log and "ack=all" in log


@pytest.mark.requirement("J13", part=True)
def test_several_clusters_and_single_servers_need_a_workload_that_has_use_for_them(tmp_path: Path) -> None:
    text = of_two(DESCRIPTOR.read_text())
    path = file_with(tmp_path, text)
    with pytest.raises(UsageError, match="has no use for 1 single servers; choose one of store-and-forward"):
        described(path, "clustered")
    without = file_with(tmp_path, re.sub(r'<server id="2" name.*?</server>', "", text, flags=re.DOTALL))
    found = described(without, "clustered")
    assert (found.nodes, dict(found.settings)) == (6, {"ha_servers": "2"})
    with pytest.raises(UsageError, match="has no use for 2 clusters; choose one of clustered"):
        described(without, "queue")
    differ = file_with(tmp_path, text.replace('name="s1">', f'name="s1">{PROPERTIES}'))
    with pytest.raises(UsageError, match="the clusters 0 and 1 differ"):
        described(differ, "clustered")


def test_what_a_test_does_not_take_from_a_descriptor_is_told(tmp_path: Path) -> None:
    text = DESCRIPTOR.read_text()
    bounded = text.replace('name="s0">', 'name="s0"><property name="max_contexts" value="10" />')
    with pytest.raises(UsageError, match="a test does not take the property max_contexts"):
        described(file_with(tmp_path, bounded), "queue")
    network = '<network domain="D1" port="1630'
    served = text.replace(network, f'<service class="stormproof.Destinations" args="/queue/a" />{network}')
    assert described(file_with(tmp_path, served), "queue").left_out == (
        "service stormproof.Destinations is left out: the workload says which services run",
    )
    path = str(file_with(tmp_path, text))
    for more, complaint in ((["--nodes", "5"], "leave out --nodes"), (["--system", "qpid"], "leave out --system")):
        ended = CliRunner().invoke(app, ["test", "--descriptor", path, *more])
        assert ended.exit_code != 0 and (complaint in str(ended.exception) or complaint in ended.output)
