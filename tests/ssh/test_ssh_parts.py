"""Decisions of backend ``ssh`` that need no host: lists of hosts, facts, addresses, queues, clocks, power."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.backends import netem, network, packets
from harness.backends.ssh import clients, clock
from harness.backends.ssh.backend import SshBackend
from harness.backends.ssh.connection import known_keys
from harness.backends.ssh.facts import (
    FACTS_SCRIPT,
    MARKER,
    STATE,
    HostFacts,
    cluster_addresses,
    lacks,
    own_machine,
    parse_facts,
    this_boot,
)
from harness.backends.ssh.hosts import SshHost, absolute, parse_list, parse_ssh_config, read_hosts
from harness.backends.ssh.keys import make_key
from harness.backends.ssh.machines import contradiction, demand_abilities
from harness.backends.ssh.power import PowerSwitch, parse_power
from harness.backends.ssh.remote import Remote, clean_script, take_script
from harness.run.deployment import topology_of
from harness.run.settings import make_test
from stormproof.contracts.backend import LinkConditions
from stormproof.errors import BackendError, HistoryError, UsageError

pytestmark = pytest.mark.requirement("H2", part=True)

LIST = """
# the lab
red    admin@192.0.2.11       key=lab_key
green  admin@192.0.2.12:2222  key=/keys/green network=10.1.0.12  # the green one
blue   root@192.0.2.13
"""


def test_a_list_of_hosts_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "lab.list"
    path.write_text(LIST)
    red, green, blue = read_hosts({"hosts": str(path)})
    assert red == SshHost("red", "192.0.2.11", 22, "admin", (str(tmp_path / "lab_key"),), agent=False)
    assert (green.port, green.keys, green.network) == (2222, ("/keys/green",), "10.1.0.12")
    assert (blue.user, blue.keys, blue.agent) == ("root", (), True)
    assert green.known_as == "[192.0.2.12]:2222" and red.known_as == "192.0.2.11"
    assert SshHost.from_json(json.loads(json.dumps(green.to_json()))) == green


@pytest.mark.parametrize(("line", "words"), [
    ("red", "the address is missing"),
    ("red 192.0.2.11", "not USER@ADDRESS"),
    ("red a@b c=d", "'c' is not understood"),
    ("red a@b key=", "'key' is not understood"),
    ("red a@b:99999", "invalid port 99999"),
    ("red a@::1", "USER@[ADDRESS]"),
    ("-f a@b", "can't begin with a dash"),
    ("red a@b network=10.1", "10.1"),
    ("red 'a@b", "quotation"),
])
def test_mistakes_in_a_list_are_told_with_their_line(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"lab:2: .*a line is NAME USER@ADDRESS") as caught:
        parse_list(f"\n{line}\n", Path("lab"))
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ["red a:s3cret@b", "red a:s3@cret@b", "red a@b password=s3cret"])
def test_what_may_be_a_password_is_not_shown(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_list(line, Path("lab"))
    assert "s3" not in str(caught.value)


def test_a_known_hosts_file_is_read_as_openssh_reads_it(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    old, new, other = (make_key(tmp_path / name).rpartition(" ")[0] for name in ("old", "new", "other"))
    host, elsewhere = SshHost("red", "192.0.2.1"), SshHost("red", "192.0.2.1", 2222)

    def keys(of: SshHost, *marker: str) -> list[str]:
        return [f"{key.get_name()} {key.get_base64()}" for key in known_keys(of, known, *marker)]

    assert keys(host) == []
    known.write_text(f"# ours\n192.0.2.1 {old}\n192.0.2.9,192.0.2.1\t{new} a note\n[192.0.2.1]:2222 {other}\n"
                     f"@revoked 192.0.2.1 {other}\n@cert-authority * {other}\n192.0.2.9 ssh-ed25519 damaged!\n\xff\n")
    assert keys(host) == [old, new], "several keys of one type"
    assert keys(host, "@revoked") == keys(elsewhere) == [other]
    known.write_text(f"192.0.2.1 {old}\n[192.0.2.1]:2222 {new}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "192.0.2.1" not in known.read_text()
    assert (keys(host), keys(elsewhere)) == ([old], [new])
    known.write_text(f"\n192.0.2.1 {old[:-6]}\n")
    with pytest.raises(BackendError, match=r"known_hosts:2: not a host key"):
        known_keys(host, known)


def test_a_host_without_the_marker_is_not_touched(tmp_path: Path) -> None:
    """What probes the kernel, which may load modules, runs only where the marker is."""
    (tmp_path / "unshare").write_text(f"#!/bin/sh\ntouch {tmp_path}/probed\n")
    (tmp_path / "unshare").chmod(0o755)
    marker = tmp_path / "marker"
    script = f"PATH={tmp_path}:$PATH\n{FACTS_SCRIPT.replace(MARKER, str(marker))}"
    for marked in (False, True):
        if marked:
            marker.touch()
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        assert (tmp_path / "probed").exists() == parse_facts(said).marked == marked


def test_a_host_is_taken_by_one_run_and_given_back_by_it(tmp_path: Path) -> None:
    """A loss of power may leave the note of who has a host empty: then nobody has it."""
    (tmp_path / "marker").touch()
    busy = tmp_path / "busy"

    def run(script: str) -> tuple[int, str]:
        script = script.replace(MARKER, str(tmp_path / "marker")).replace(STATE, str(tmp_path))
        for part in (network.HEAL_SCRIPT, netem.HEAL, packets.HEAL):
            script = script.replace(part, ":")
        script = script.replace(clock.NOTE, "/nowhere")
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    first, second = (Remote(name, "/known", {"n1": SshHost("red", "192.0.2.1")}) for name in ("first", "second"))
    assert run(take_script(first, "n1")) == run(take_script(first, "n1")) == (0, "")
    status, said = run(take_script(second, "n1"))
    assert status == 1 and "in use by run first" in said
    assert not (tmp_path / "runs" / "second").exists(), "what is not ours is not cleaned, either"
    assert run(clean_script(second, "n1")) == (0, "") and busy.read_text() == "first\n"
    busy.write_text("")
    assert run(take_script(second, "n1")) == (0, "") and busy.read_text() == "second\n"
    busy.write_text("")
    assert run(clean_script(second, "n1"))[0] == 0 and not busy.exists()
    (tmp_path / "runs" / "second").mkdir()  # as an attempt leaves it that was cut off in its middle
    assert run(clean_script(second, "n1"))[0] == 0 and not list((tmp_path / "runs").glob("second"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "marker", "runs"]


@pytest.mark.parametrize(("text", "words"), [
    ("", "names no host"),
    ("a u@h\na u@i\n", "the name a is there twice"),
    ("a u@h\nb v@h\n", "the address h is there twice"),
])
def test_lists_that_make_no_sense_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lab").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_hosts({"hosts": str(tmp_path / "lab")})
    with pytest.raises(UsageError, match="not both"):
        read_hosts({"hosts": "a", "ssh_config": "b"})


def test_an_ssh_configuration_is_read_but_its_carelessness_is_not() -> None:
    text = """
Host n2 n1
  HostName 127.0.0.1
  User vagrant
  Port 2200
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  IdentityFile "/a folder/key"
  IdentitiesOnly yes
Host *
  User other
"""
    hosts = parse_ssh_config(text, Path("config"))
    assert [host.name for host in hosts] == ["n2", "n1"]
    assert hosts[0] == SshHost("n2", "127.0.0.1", 2200, "vagrant", ("/a folder/key",), agent=False)
    with pytest.raises(UsageError, match="proxyjump"):
        parse_ssh_config("Host far\n  HostName h\n  ProxyJump near\n", Path("config"))


def test_files_outlive_the_folder_they_were_named_in() -> None:
    assert absolute({"hosts": "x/lab", "power": "vagrant", "ack": "all"}) == {
        "hosts": str(Path.cwd() / "x/lab"), "power": f"vagrant={Path.cwd()}", "ack": "all"}


FACTS = """boot 1b-2c
hostname red
marker
python 3 9 /usr/bin/python3
python 3 12 /opt/python3.12
missing nft
missing timeout
address eth0 10.0.2.15/24
address eth1 192.168.56.11/24
netem
"""


def test_facts_are_read_and_what_is_missing_is_named() -> None:
    facts = parse_facts(FACTS)
    assert (facts.boot, facts.hostname, facts.marked, facts.netem, facts.ifb) == ("1b-2c", "red", True, True, False)
    assert facts.python == "/opt/python3.12" and facts.devices["192.168.56.11"] == "eth1"
    assert lacks(facts) == "nft, timeout not found; run there as root: apt-get install coreutils nftables"
    old = lacks(parse_facts("python 3 9 /usr/bin/python3\n"))
    assert old == "no Python 3.11 or newer (found: 3.9); run there as root: apt-get install python3"
    assert not parse_facts("").marked, "a host that says nothing may not be broken"


def vm(number: int, **more: object) -> HostFacts:
    """A machine as VirtualBox makes it: the same address in one network, its own in another."""
    addresses = ("10.0.2.15/24", f"192.168.56.{10 + number}/24")
    return HostFacts(boot=f"boot-{number}", addresses=tuple(map(ipaddress.IPv4Interface, addresses)), **more)  # type: ignore[arg-type]


def test_nodes_use_a_network_that_all_share_and_in_which_they_differ() -> None:
    hosts = [SshHost(f"n{i}", "127.0.0.1", 2200 + i) for i in (1, 2)]
    facts = [vm(1), vm(2)]
    assert [str(found.ip) for found in cluster_addresses(hosts, facts, "")] == ["192.168.56.11", "192.168.56.12"]
    with pytest.raises(BackendError, match="no address in a network that all hosts share"):
        cluster_addresses(hosts, facts, "10.9.0.0/16")
    named = [SshHost("n1", "127.0.0.1", network="10.0.2.15"), hosts[1]]
    assert str(cluster_addresses(named, facts, "192.168.56.0/24")[0].ip) == "10.0.2.15"
    with pytest.raises(BackendError, match=r"does not have the address 10\.0\.2\.9"):
        cluster_addresses([SshHost("n1", "h", network="10.0.2.9"), hosts[1]], facts, "")
    with pytest.raises(BackendError, match=r"two hosts have the address 10\.0\.2\.15"):
        cluster_addresses([SshHost(f"n{i}", f"h{i}", network="10.0.2.15") for i in (1, 2)], facts, "")


def test_only_a_machine_of_its_own_gets_a_machine_s_faults() -> None:
    assert own_machine(vm(1), [vm(2), vm(3)]) is None
    assert own_machine(vm(1), [vm(1)]) == "it shares its kernel with another node"
    assert own_machine(vm(1, container="lxc"), []) == "it is a container (lxc)"
    assert own_machine(HostFacts(boot=this_boot()), []) == "it shares this machine's kernel"


@pytest.mark.parametrize(("ability", "beside", "facts", "words"), [
    ("clocks", True, vm(1), None),
    ("clocks", True, vm(1, container="lxc"), "it is a container (lxc), and it has no libfaketime (run"),
    ("clocks", True, vm(1, container="lxc", faketime=True), None),
    ("disks", True, vm(1, fuse=True), None),
    ("disks", True, vm(1), "apt-get install fuse3"),
    ("reboot", True, HostFacts(boot=this_boot()), "this machine's kernel"),
    ("packets", True, vm(1, netem=True, ifb=True), None),
    ("packets", True, vm(1, netem=True), "no ifb"),
    ("packets", False, vm(1, netem=True), None),
    ("packets", True, vm(1, queue=True), None),
    ("packets", False, vm(1), "neither netem nor"),
    ("power", True, vm(1), "--set power="),
    ("links", True, vm(1), None),
])
def test_faults_that_a_host_cannot_have_are_refused(
    ability: str, beside: bool, facts: HostFacts, words: str | None
) -> None:
    nodes = {"n1": SshHost("red", "192.0.2.1")}
    if words is None:
        return demand_abilities([ability], nodes, {"n1": facts}, None, beside)
    refused = rf"red \(root@192.0.2.1:22\) can't have faults that need '{ability}'"
    with pytest.raises(BackendError, match=refused) as caught:
        demand_abilities([ability], nodes, {"n1": facts}, None, beside)
    assert words in str(caught.value)


@pytest.mark.parametrize("other", ["power", "reboot"])
def test_a_disk_that_can_fail_is_gone_at_a_boot(other: str) -> None:
    assert "gone when its host boots: leave out either" in contradiction({"disks", other, "clock"})
    assert contradiction({"disks", "clock"}) == contradiction({other}) == ""
    test = make_test(system="joram", workload="queue", nemesis=f"disk,{other}", backend="sim", nodes=3, time_limit=5.0,
                     rate=10.0, seed=1, settings={})  # fmt: skip
    assert "gone when its host boots" in SshBackend.cannot(test, topology_of(test))


ADDRESS = {"n1": "10.9.0.11", "n2": "10.9.0.12", "c1": "10.9.0.131", "c2": "10.9.0.132"}


def test_each_link_suffers_once_at_a_node() -> None:
    slow, lossy = LinkConditions(delay=0.02, jitter=0.005, rate=1000.0), LinkConditions(loss=0.25)
    conditions = {("n1", "n2"): slow, ("n2", "c1"): lossy, ("c2", "n1"): lossy, ("c1", "c2"): slow}
    found = netem.queues(["n1", "n2"], conditions)
    assert found == {"n1": netem.NodeShaping({"n2": slow}, {"c2": lossy}), "n2": netem.NodeShaping({"c1": lossy}, {})}
    script = found["n1"].script("eth1", ADDRESS)
    assert "parent 5700:2 handle 5701: netem limit 100000 delay 20000us 5000us rate 8000bit" in script
    assert "match ip dst 10.9.0.12/32 flowid 5700:2" in script
    assert f"tc qdisc add dev {netem.DEVICE} parent 5700:2 handle 5701: netem limit 100000 loss 25%" in script
    assert "match ip src 10.9.0.132/32 flowid 5700:2" in script
    assert len(netem.DEVICE) <= 15, "the kernel's limit"
    assert netem.NodeShaping({}, {}).script("eth1", ADDRESS).splitlines()[-1] == "set -e", "only heals"
    with pytest.raises(BackendError, match="resets no connections"):
        netem.queues(["n1"], {("n1", "c1"): LinkConditions(reset=0.1)})
    with pytest.raises(BackendError, match="more than 15 links"):
        netem.queues(["n1"], {("n1", f"c{i}"): lossy for i in range(16)})


def test_links_with_doubled_packets_share_a_queue() -> None:
    double = LinkConditions(duplicate=0.5)
    queues = netem.queues(["n1"], {("n1", "n2"): double, ("n1", "c1"): double})["n1"]
    script = queues.script("eth1", ADDRESS)
    assert script.count("netem limit 100000 duplicate 50%") == 1 and script.count("flowid 5700:2") == 2
    shown = "qdisc netem 5701: parent 5700:2 limit 100000 duplicate 50%\n Sent 6400 bytes 100 pkt (dropped 0, over)\n"
    assert netem.parse_counts(f"{shown}\narriving\n", "n1", queues) == {("n1", "n2"): 25, ("n1", "c1"): 25}


def test_what_netem_counted_is_read_by_direction() -> None:
    text = """qdisc prio 5700: root refcnt 2 bands 2
 Sent 999 bytes 99 pkt (dropped 9, overlimits 0 requeues 0)
qdisc netem 5701: parent 5700:2 limit 100000 loss 25%
 Sent 6400 bytes 90 pkt (dropped 30, overlimits 0 requeues 0)
arriving
qdisc netem 5701: parent 5700:2 limit 100000 delay 20ms
 Sent 64 bytes 7 pkt (dropped 0, overlimits 0 requeues 0)
"""
    queues = netem.NodeShaping({"n2": LinkConditions(loss=0.25)}, {"c1": LinkConditions(delay=0.02)})
    assert netem.parse_counts(text, "n1", queues) == {("n1", "n2"): 30, ("c1", "n1"): 7}
    nothing = netem.NodeShaping({"n2": LinkConditions(corrupt=0.3)}, {})
    assert netem.parse_counts("\narriving\n", "n1", nothing) == {("n1", "n2"): 0}, "no packet, no evidence"


def run_clock(folder: Path, offset: float, rate: float) -> dict[str, float]:
    """Run the node's program with the calls that change the machine's clock noted instead."""
    program = clock._PROGRAM.replace(repr(clock.NOTE), repr(str(folder / "note")))
    program = program.replace("tick(round", "done['tick'] = (round").replace(
        "time.clock_settime(time.CLOCK_REALTIME, ", "done['time'] = (")
    program = f"done = {{}}\nimport atexit, json\natexit.register(lambda: print(json.dumps(done)))\n{program}"
    output = subprocess.run([sys.executable, "-c", program, repr(offset), repr(rate)], capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    return dict(json.loads(output.stdout.splitlines()[-1]))


def test_a_clock_is_set_wrong_and_right_by_the_clock_that_nobody_sets(tmp_path: Path) -> None:
    assert run_clock(tmp_path, 0.0, 1.0) == {}, "a clock that is right is not touched"
    wrong = run_clock(tmp_path, -300.0, 0.91)
    assert abs(wrong["time"] + 300 - time.time()) < 5 and wrong["tick"] == 9100
    again = run_clock(tmp_path, 60.0, 1.0)
    assert abs(again["time"] - 60 - time.time()) < 5, "an offset is from the right time, not from the last one"
    right = run_clock(tmp_path, 0.0, 1.0)
    assert abs(right["time"] - time.time()) < 5 and right["tick"] == 10000
    assert list(tmp_path.iterdir()) == []


def test_power_is_switched_by_whoever_has_it(tmp_path: Path) -> None:
    assert parse_power("") is None and parse_power("virsh=lab_{host}") == PowerSwitch("virsh", "lab_{host}")
    for text in ("nuclear", "command"):
        with pytest.raises(UsageError, match=f"power={text}: what cuts a machine's power"):
            parse_power(text)
    with pytest.raises(BackendError, match=r"`/no/such off red` can't be run"):
        PowerSwitch("command", "/no/such").switch("red", on=False)
    program = tmp_path / "pdu"
    program.write_text("#!/bin/sh\necho no such socket >&2; exit 4\n")
    program.chmod(0o755)
    with pytest.raises(BackendError, match=r"`.*pdu on red` failed: no such socket"):
        PowerSwitch("command", str(program)).switch("red", on=True)


def test_virsh_is_called_with_the_name_of_the_machine_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "virsh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    (tmp_path / "virsh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for on in (False, True):
        PowerSwitch("virsh", "lab_{host}").switch("red", on)
    assert (tmp_path / "called").read_text() == "destroy lab_red\nstart lab_red\n"


def test_addresses_are_added_to_networks_of_our_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [("eth0", ipaddress.IPv4Interface("192.0.2.1/24"))]
    monkeypatch.setattr(clients, "_links", lambda: here)
    monkeypatch.setattr(clients, "source_address", lambda target: "192.0.2.1")
    monkeypatch.setattr(clients, "_may_add", lambda: None)
    nodes = [ipaddress.IPv4Interface("192.0.2.11/24")]
    shown = {"link": [{"linkinfo": {"info_kind": "bridge"}}], "master": [{"linkinfo": {"info_kind": "tun"}}]}
    monkeypatch.setattr(clients, "_shown", lambda *words: shown["master" if "master" in words else "link"])
    monkeypatch.setattr(clients, "_silent", lambda candidates: list(candidates)[1:])
    found = clients.plan(nodes, 2)
    assert found == clients.ClientAddresses("eth0", ("192.0.2.253", "192.0.2.252"), 24), "one that answers is taken"
    shown["master"].append({})
    assert clients.plan(nodes, 2) == "the network of eth0 is not this machine's own", "a physical device is in it"
    shown["link"] = [{}]
    assert clients.plan(nodes, 2) == "the network of eth0 is not this machine's own"
    assert "not in a network" in str(clients.plan([ipaddress.IPv4Interface("198.51.100.1/24")], 2))
    with pytest.raises(BackendError, match=r"192\.0\.2\.7 is not on this machine"):
        clients.given("192.0.2.1,192.0.2.7", 2)


def test_only_one_run_at_a_time_plans_and_adds_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ThreadPoolExecutor(1)
    with clients.claim():
        with monkeypatch.context() as patch:
            patch.setattr(clients, "_CLAIM_WAIT_S", 0.05)
            with pytest.raises(BackendError, match="another run adds client addresses"):
                clients.claim()
        waiting = pool.submit(clients.claim)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
    waiting.result(20).close()
    pool.shutdown()


def test_the_note_of_a_run_s_hosts_survives_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    remote = Remote("run-1", "/known", {"n1": SshHost("red", "192.0.2.1", keys=("/key",))},
                    clients.ClientAddresses("br0", ("192.0.2.9",), 24), "vagrant=/here")
    assert Remote.read(tmp_path) is None
    remote.write(tmp_path)
    assert Remote.read(tmp_path) == remote
    for damaged in ('{"run": ', json.dumps({**json.loads((tmp_path / "remote.json").read_text()), "run": ".."})):
        (tmp_path / "remote.json").write_text(damaged)
        with pytest.raises(HistoryError, match="can't read"):
            Remote.read(tmp_path)


def test_a_test_on_hosts_can_be_repeated_from_its_command() -> None:
    from harness.run.describe import command_line

    test = make_test(system="joram", workload="queue", nemesis="none", backend="ssh", nodes=3, time_limit=5, rate=10,
                     seed=1, settings={"hosts": "/lab.list"})  # fmt: skip
    words = command_line(test, Path("runs"))
    assert "--backend ssh" in words and "hosts=/lab.list" in words and "ssh_config" not in words
