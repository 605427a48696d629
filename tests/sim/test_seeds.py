"""Seeds of campaigns that unchanged brokers once came out of as invalid: none is any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.run.cases import Case
from harness.sim.campaign import NONE, run_seed


def settings(text: str) -> dict[str, str]:
    return dict(each.split("=", 1) for each in text.split())


@pytest.mark.parametrize(("case", "seed"), [
    # An event came to a replica that a new group had left out, and which did not know of a topic that this had made.
    (Case("icestorm", "topic-dialogue", "rolling,clock", 5, 22.0, 17.0, settings(
        "acm_timeout=1.0 clock_skew=0.09 election_timeout=1.0 fault_gap=1.0 fault_lengths=0.95,1.3,2.2 "
        "master_timeout=2.0 min_ok=3 offline_events=kept op_timeout=1.0 response_timeout=1.0")), 200202),
    # What was armed struck while it was being healed: the replica that had confirmed events died then.
    (Case("icestorm", "events", "kill,points,reboot", 4, 28.0, 40.0, settings(
        "election_timeout=0.5 response_timeout=0.2 surface=true producers=1 subscribers=6 topics=3 links=3 min_ok=3 "
        "fault_lengths=0.15,0.21,0.95 fault_gap=0.3")), 200019),
    # Nobody could be promoted until a person accepted a store.
    (Case("qpid", "dialogue", "kill,quorum,points,pause,power", 3, 40.0, 17.0, settings(
        "detection_timeout=0.5 manager_lease=2.0 catchup_timeout=2.0 eviction_timeout=3.0 client_order=primary-first "
        "same_replica=0.0 talkers=1 kill_kind=random power_kind=master min_ok=3 fault_lengths=1.2,1.9,4.4 "
        "fault_gap=1.0")), 200003),
    # A process was killed right after its start: its lines were put where those of its successor belong.
    (Case("joram", "offline-send", "kill", 3, 16.0, 40.0, settings(
        "ack=majority detection_timeout=0.3 transfer_chunk=24 offline=50 client_order=primary-first same_replica=0.0 "
        "kill_kind=random fault_lengths=0.39,3,5.25 min_ok=3 producers=3 queues=2 away=8 kills=40")), 200047),
    # A log of which nothing was kept began with a group that was not committed, but the same as before.
    (Case("joram", "store-and-forward", "rolling,pause", 6, 22.0, 40.0, settings(
        "ack=all client_heartbeat=3.0 client_order=primary-first consume_at=ha-server consumers=3 "
        "detection_timeout=2.0 fault_gap=1.0 fault_lengths=2.1,4.4,6 idle_timeout=2.0 impatient=true local_servers=2 "
        "log_keep=5 min_ok=3 op_timeout=1.0 own_servers=ha poll=1.0 propagation=asynchronous same_replica=0.5 "
        "surface=true transfer_chunk=24")), 200262),
    # A coordinator left one of higher priority time, which then could not be found any more.
    (Case("icestorm", "topic-dialogue", "pause", 3, 16.0, 17.0, settings(
        "client_heartbeat=3.0 client_order=primary-first fault_gap=0.3 fault_lengths=0.95,4.4,6 master_timeout=2.0 "
        "min_ok=3 response_timeout=0.2")), 200181),
    # A replica had its turn while the rolling restart was being ended.
    (Case("icestorm", "events", "rolling", 3, 16.0, 40.0, settings(
        "master_timeout=0.3 response_timeout=1.0 op_timeout=1.0 surface=true links=2 work=0.05 min_ok=3 "
        "fault_lengths=0.18,0.39,4 fault_gap=2.0")), 211447),
    # A subscription was asked for in vain, made again and deleted; then the first request was carried out.
    (Case("fiorano", "topic", "lockfile,power", 2, 22.0, 17.0, settings(
        "mode=shared lease=0.5 heartbeat=1.0 database_timeout=0.5 same_replica=2.0 impatient=true client_heartbeat=0.1 "
        "op_timeout=1.0 poll=1.0 surface=true transients=1 stay=3 min_ok=3 fault_lengths=0.47,0.53 fault_gap=1.0")),
     211049),
    # Who stood still when it was elected began when there was a newer master.
    (Case("joram", "clustered-topic", "power,points", None, 22.0, 17.0, settings(
        "detection_timeout=0.3 transfer_chunk=24 transfer=held-back poll=1.0 surface=true topics=2 durables=4 "
        "transients=1 window=32 stay=10 power_kind=all min_ok=3 fault_lengths=0.39,0.66,1.2 fault_gap=0.1")), 211349),
    # A forged reset told one of two members that their link was gone, and they had nothing to say to each other.
    (Case("icestorm", "topic-dialogue", "partition,packets", 3, 22.0, 17.0, settings(
        "master_timeout=0.5 acm_timeout=5.0 client_order=primary-first client_heartbeat=0.1 min_ok=3 "
        "fault_lengths=1.1,4 fault_gap=1.0")), 1200697),
    # The lock file was gone, and with it whose the epoch had been that nobody had come to use: both servers waited.
    (Case("fiorano", "lock", "channel,packets,lockfile,pause,points", 2, 40.0, 17.0, settings(
        "max_closed=20 max_outcomes=40 client_order=primary-first same_replica=0.0 round_pause=0.3 op_timeout=6.0 "
        "clients=outside pause_kind=master points_kind=partial,power min_ok=3 fault_lengths=0.24,0.6 fault_gap=0.1")),
     10),
    # A spare whose addition was broken off kept what it had until it would be added again.
    (Case("joram", "lease", "partition,reboot,points,membership,rolling", 3, 40.0, 40.0, settings(
        "idle_timeout=1.0 max_outcomes=40 log_keep=20 transfer_chunk=24 send_window=200 spares=1 "
        "client_order=primary-first same_replica=0.0 holders=stalling membership_kind=add min_ok=3 "
        "fault_lengths=0.6,1.3 fault_gap=0.3")), 930135),
    # A manager asked who would vote for it for a lease, and then for promises for another.
    (Case("qpid", "configuration", "packets", 3, 16.0, 40.0, settings(
        "detection_timeout=0.5 manager_lease=0.5 op_timeout=6.0 clients=outside min_ok=3 fault_lengths=0.47,3,4.75 "
        "fault_gap=0.1")), 5000098),
    # Heart-beats were late after each of many pauses.
    (Case("fiorano", "dialogue", "pause,channel", 2, 22.0, 17.0, settings(
        "mode=shared lease=0.5 page=24 round_pause=0.3 impatient=true op_timeout=6.0 talkers=8 visitors=true "
        "pause_kind=master min_ok=3 fault_lengths=0.15,0.95,1 fault_gap=0.1")), 5000012),
    # All replicas had just been started, and wait for each other, when one was taken away for long.
    (Case("icestorm", "subscriptions", "power", None, 46.4, 40.0, settings(
        "master_timeout=2.0 response_timeout=1.0 client_heartbeat=0.1 op_timeout=6.0 changers=2 subscribers=6 "
        "loose_topics=0 links=6 min_ok=3 fault_lengths=1.05,2.6,4,18.2 fault_gap=1.0")), 76),
    # Of the ends of branches the broker remembers forty, of all clients.
    (Case("joram", "dialogue", "stop", None, 25.6, 40.0, settings(
        "max_outcomes=40 log_keep=100 transfer_chunk=24 poll=1.0 talkers=8 min_ok=3 fault_lengths=0.6,1.3,6,7.8 "
        "fault_gap=0.3")), 555),
    # The view of a group that had lost a member was written without dropping what the log need not keep.
    (Case("joram", "transaction", "crash,points,packets,disk", 3, 34.0, 17.0, settings(
        "ack=majority detection_timeout=0.5 idle_timeout=1.0 log_keep=5 send_window=2000 client_order=primary-first "
        "transactions=xa parts=6 aborts=50 points_kind=partial,power clients=outside min_ok=3 "
        "fault_lengths=0.47,2.2,4 fault_gap=0.1")), 3000134),
    # Replicas that came back were behind what the log keeps, and got all the messages that waited.
    (Case("joram", "consume-last", "rolling", 3, 16.0, 17.0, settings(
        "ack=majority detection_timeout=0.5 idle_timeout=1.0 max_outcomes=40 log_keep=5 transfer_chunk=24 "
        "impatient=True client_heartbeat=1.0 surface=True min_ok=3 fault_lengths=0.53,1.05,2.2 fault_gap=1.0")),
     3000341),
    # A producer sent a command that was refused, and again and again as it had no receipt: nothing else was sent.
    (Case("joram", "clustered", "pause,clock,partition", 4, 28.0, 40.0, settings(
        "ack=majority detection_timeout=0.3 idle_timeout=2.0 max_closed=10 max_outcomes=40 same_replica=2.0 "
        "impatient=True client_heartbeat=3.0 poll=0.05 producers=1 consumers=2 surface=True pause_kind=random "
        "clients=outside min_ok=3 fault_lengths=0.28,0.32 fault_gap=2.0")), 3000516),
    # A server said that it had more than this connection had brought: that was sent again, and never forgotten.
    (Case("standalone", "store-and-forward", "packets,disk,clock", 2, 28.0, 40.0, settings(
        "max_closed=10 producers=1 surface=True local_servers=1 consume_at=own-server clients=outside min_ok=3 "
        "fault_lengths=4.75,5.25 fault_gap=2.0")), 3000670),
    # Producers that wait for each confirmation leave little to be sent to backups together.
    (Case("qpid", "offline-send", "stop,kill", 3, 22.0, 40.0, settings(
        "detection_timeout=0.5 manager_lease=2.0 broker_network=own client_heartbeat=3.0 op_timeout=6.0 window=1 "
        "min_ok=3 fault_lengths=4.75,6 fault_gap=0.3")), 3000923),
    # A message came before the receipt of the subscription, which did not come in time; it counted as acknowledged.
    (Case("joram", "queue", "partition,clock,points,packets", 3, 34.0, 17.0, settings(
        "ack=majority max_closed=20 log_keep=5 transfer_chunk=1000 transfer=held-back send_window=2000 "
        "client_heartbeat=0.1 queues=2 surface=True points_kind=partial,power min_ok=3 fault_lengths=0.95,4,6 "
        "fault_gap=1.0")), 3000221),
    # A replica stored entries, said so, and was killed before anybody looked at what it has on disk.
    (Case("joram", "lock", "packets,points,partition", 3, 28.0, 17.0, settings(
        "idle_timeout=2.0 max_closed=10 max_outcomes=40 transfer=held-back round_pause=0.3 op_timeout=6.0 "
        "partition_kind=random min_ok=3 fault_lengths=0.95,1.05,4 fault_gap=0.3")), 3000164),
    # A message came on a connection that was lost, and again on the next, to the same operation of its client.
    (Case("fiorano", "queue", "points,stop,rolling,packets", 2, 34.0, 17.0, settings(
        "idle_timeout=1.0 page=24 max_closed=20 max_outcomes=40 same_replica=2.0 impatient=True client_heartbeat=3.0 "
        "op_timeout=6.0 producers=10 consumers=6 surface=True min_ok=3 fault_lengths=0.6,1,1.05 fault_gap=1.0")),
     3000322),
    # A coordinator stood still with the database of its new group; the others made one of a later epoch meanwhile.
    (Case("icestorm", "topic-dialogue", "points,stop,kill", 3, 28.0, 17.0, settings(
        "election_timeout=0.5 publisher_endpoints=one acm_timeout=5.0 talkers=1 min_ok=3 fault_lengths=0.65,1.1,4 "
        "fault_gap=0.1")), 3001910),
    # A replica that had just started followed a master and lost it again in one step.
    (Case("joram", "lock", "rolling,packets,points", None, 28.0, 17.0, settings(
        "transfer=held-back client_order=primary-first round_pause=0.3 client_heartbeat=0.1 op_timeout=1.0 "
        "points_kind=partial,power min_ok=3 fault_lengths=0.6,3 fault_gap=0.1")), 11000141),
    # A store was being replaced by a copy, of which memory has nothing.
    (Case("qpid", "transaction", "partition,kill", 3, 22.0, 17.0, settings(
        "max_under_way=2 max_bytes_under_way=5000 output_timeout=0.5 detection_timeout=0.5 manager_lease=0.5 "
        "catchup_timeout=1.0 eviction_timeout=2.0 broker_network=own person=copies client_order=primary-first "
        "surface=True crash_share=0.2 movers=4 partition_kind=master clients=outside min_ok=3 "
        "fault_lengths=0.95,1.1,2.2 fault_gap=0.3")), 41000093),
    # A server that had been granted the lock stood still before it knew, until another had it.
    (Case("fiorano", "lock", "points,shared-db,gateway", None, 28.0, 17.0, settings(
        "mode=shared lease=0.5 heartbeat=1.0 idle_timeout=2.0 connect=home client_heartbeat=3.0 "
        "min_ok=3 fault_lengths=0.3,1.05,1.3 fault_gap=1.0")), 42000015),
    # A client had so much output that it was not listened to, and half of that was taken (43000212).
    (Case("standalone", "dialogue", "none", None, 14.0, 17.0, settings(
        "max_under_way=1 client_heartbeat=3.0 op_timeout=6.0 talkers=8 min_ok=3")), 3),
    # Of three brokers two had come to rest in order, and nobody could be promoted.
    (Case("qpid", "register", "crash,reboot", None, 22.0, 17.0, settings(
        "max_under_way=2 max_outstanding=3 catchup_timeout=0.3 eviction_timeout=2.0 catchup_chunk=2000 "
        "sequence_bits=4 broker_network=own crash_kind=shutdown same_replica=0.0 client_heartbeat=3.0 surface=True "
        "keys=1 min_ok=3 fault_lengths=0.18,1.2,4 fault_gap=0.1")), 41000105),
    # A client asked again for a commit that the broker had carried out, and 40 others since.
    (Case("joram", "transaction", "clock,pause,points", 4, 28.0, 40.0, settings(
        "max_outcomes=40 detection_timeout=2.0 idle_timeout=5.0 max_under_way=2 max_bytes_under_way=5000 "
        "message_cache=1 transactions=xa movers=4 parts=2 client_heartbeat=0.1 impatient=True "
        "points_kind=partial,power surface=True min_ok=3 fault_lengths=1.2,4.75,6 fault_gap=0.1")), 82000010),
    # A broker that the broker URL named no more was promoted: nobody had noted that the primary went on without it.
    (Case("qpid", "register", "membership,kill", 3, 22.0, 17.0, settings(
        "max_bytes_under_way=5000 catchup_timeout=0.3 eviction_timeout=3.0 catchup_chunk=2000 broker_network=own "
        "membership_kind=remove client_order=primary-first round_pause=0.3 client_heartbeat=3.0 op_timeout=6.0 "
        "surface=True min_ok=3 fault_lengths=0.6,0.66,1.3 fault_gap=0.1")), 106),
    # A connection was closed for idleness while its client began to end what it had made.
    (Case("icestorm", "topic-dialogue", "kill", None, 36.0, 17.0, settings(
        "answer_page=60 acm_timeout=1.0 kill_kind=random min_ok=3 fault_lengths=2.2,4,13 fault_gap=2.0")), 95000860),
    # Who stood still when it was elected lacks what a later master committed, though others had written it before.
    (Case("joram", "clustered", "clock,reboot,points,partition,pause", None, 40.0, 17.0, settings(
        "max_closed=20 max_outcomes=40 log_keep=5 send_window=200 same_replica=0.0 impatient=True producers=10 "
        "consumers=2 surface=True min_ok=3 fault_lengths=1.05,4,6 fault_gap=0.1")), 95001264),
    # Whoever has its share under way is listened to again when a command of it is done, whatever others have by then.
    (Case("icestorm", "subscriptions", "pause", 3, 36.0, 40.0, settings(
        "max_under_way=2 max_bytes_under_way=5000 changers=2 min_ok=3 fault_lengths=0.53,1.3,2.2,13 fault_gap=2.0")),
     95000986),
    (Case("icestorm", "events", "points", None, 16.0, 40.0, settings(
        "max_under_way=2 max_outstanding=3 response_timeout=1.0 client_heartbeat=3.0 surface=True work=0.05 "
        "points_kind=partial,power min_ok=3 fault_lengths=1.05,1.3 fault_gap=0.1")), 95001948),
    # A pair whose channel is reset again and again synchronises again and again.
    (Case("fiorano", "consume-last", "points,reboot,packets,rolling", 2, 34.0, 40.0, settings(
        "heartbeat=0.1 page=24 max_under_way=2 max_bytes_under_way=5000 output_timeout=1.0 message_cache=300 "
        "same_replica=2.0 impatient=True client_heartbeat=1.0 surface=True producers=1 min_ok=3 fault_lengths=0.4,0.6 "
        "fault_gap=1.0")), 95001194),
    # A replica that was not taken in dials on, and nobody asks for anything.
    (Case("joram", "lock", "points,membership,pause", 4, 28.0, 17.0, settings(
        "ack=majority propagation=asynchronous detection_timeout=0.5 max_closed=20 max_outcomes=40 log_keep=5 "
        "transfer=held-back spares=2 impatient=True client_heartbeat=1.0 op_timeout=1.0 poll=0.05 "
        "membership_kind=add,remove pause_kind=master min_ok=3 fault_lengths=0.47,0.65 fault_gap=2.0")), 97000006),
    # A broker that was away while stores were copied came back with one of an earlier shutdown, and nobody erased it.
    (Case("qpid", "lock", "quorum,membership,clock", 3, 28.0, 17.0, settings(
        "output_timeout=0.5 detection_timeout=0.5 eviction_timeout=2.0 person=copies membership_kind=remove min_ok=3 "
        "fault_lengths=0.65,2,5.25 fault_gap=0.3")), 95000746),
    # A manager that was told to end, and awaits its broker's end, need not stand.
    (Case("qpid", "transaction", "reboot,partition,packets,stop,manager", None, 40.0, 17.0, settings(
        "catchup_timeout=2.0 eviction_timeout=3.0 person=copies same_replica=0.0 surface=True movers=4 "
        "partition_kind=link clients=outside packets_links=clients min_ok=3 fault_lengths=1.2,2.1,2.6 fault_gap=2.0")),
     95001616),
    # Who gets no answers may ask for votes again by the same ballot.
    (Case("qpid", "lock", "stop,points,manager,partition", 3, 34.0, 17.0, settings(
        "max_under_way=2 detection_timeout=0.5 manager_lease=0.5 catchup_timeout=2.0 eviction_timeout=3.0 "
        "person=copies client_order=primary-first impatient=True workers=8 partition_kind=majority-ring min_ok=3 "
        "fault_lengths=0.47,2,2.6 fault_gap=0.3")), 96000054),
    # A broker that was away while stores were copied was taken in again while nobody served.
    (Case("qpid", "offline-send", "power,membership,points,crash", 3, 34.0, 17.0, settings(
        "answer_page=400 detection_timeout=0.5 catchup_timeout=2.0 eviction_timeout=2.0 catchup_chunk=100 "
        "crash_kind=shutdown person=copies membership_kind=remove op_timeout=6.0 window=4 points_kind=partial,power "
        "min_ok=3 fault_lengths=0.3,0.6,2 fault_gap=2.0")), 95001374),
    # The master of one server was asked to take in a replica of another one, and dialled it for ever.
    (Case("joram", "clustered", "kill,membership,clock", None, 28.0, 17.0, settings(
        "ack=majority propagation=asynchronous detection_timeout=0.5 max_closed=10 spares=1 consumers=6 surface=True "
        "membership_kind=add,remove min_ok=3 fault_lengths=0.3,0.65,6 fault_gap=2.0")), 15),
    # A log keeps up to twice what it is to keep, and is none that grows (with 10,000: 400 operations a second).
    (Case("joram", "queue", "none", None, 10.0, 60.0, settings("log_keep=400 min_ok=5")), 1),
    # A replica followed a master and lost it before its next look at elections, and its turn had come long ago.
    (Case("joram", "register", "partition,points,clock,packets,reboot", None, 40.0, 17.0, settings(
        "detection_timeout=0.5 output_timeout=1.0 log_keep=5 transfer_chunk=1000 transfer=held-back "
        "points_at=joram.regrouped,joram.truncated,joram.loaded round_pause=0.3 op_timeout=1.0 surface=True threads=3 "
        "partition_kind=master clients=outside packets_links=clients min_ok=3 fault_lengths=0.47,2,6 fault_gap=0.1")),
     309500063),
    # The links of a master were cut at a point, and TCP sent again what was lost after the fault only.
    (Case("joram", "dialogue", "membership,points", 3, 22.0, 17.0, settings(
        "detection_timeout=2.0 log_keep=20 transfer_chunk=24 send_window=2000 spares=1 client_heartbeat=3.0 "
        "max_prefetch=1 max_subscriptions=2 max_transaction_items=2 membership_kind=add,remove min_ok=3 "
        "fault_lengths=1.2,2.1,6 fault_gap=1.0")), 309500016),
    # The connection of a client failed while its command waited for its turn: it could be sent no heart-beat.
    (Case("qpid", "dialogue", "membership,stop,points,manager", None, 34.0, 40.0, settings(
        "max_under_way=2 max_bytes_under_way=5000 max_outstanding=1 manager_lease=0.5 eviction_timeout=3.0 "
        "catchup_chunk=2000 person=copies membership_kind=remove same_replica=0.0 points_kind=partial,power min_ok=3 "
        "fault_lengths=0.6,5.25,6 fault_gap=1.0")), 309500094),
    # A note named a broker that a primary of a later term had made ready since.
    (Case("qpid", "register", "quorum,pause", None, 22.0, 17.0, settings(
        "detection_timeout=0.5 catchup_timeout=2.0 eviction_timeout=2.0 catchup_chunk=2000 person=copies "
        "client_order=primary-first same_replica=2.0 surface=True threads=10 read_share=20 pause_kind=master min_ok=3 "
        "fault_lengths=0.6,2 fault_gap=1.0")), 320027033),
    # A manager that had been cut off heard of two decisions at once, and took the note of the first.
    (Case("qpid", "offline-send", "kill,points", None, 22.0, 17.0, settings(
        "max_bytes_under_way=5000 max_outstanding=3 message_cache=300 manager_lease=2.0 catchup_timeout=0.3 "
        "eviction_timeout=2.0 catchup_chunk=2000 broker_network=own person=copies client_heartbeat=3.0 poll=0.05 "
        "offline=50 kill_kind=master min_ok=3 fault_retries=6 fault_lengths=1.05,1.2,2.2 fault_gap=0.1")), 410000036),
], ids=lambda each: each.workload if isinstance(each, Case) else str(each))  # fmt: skip
def test_it_is_not_invalid(case: Case, seed: int, tmp_path: Path) -> None:
    result = run_seed(case, seed, tmp_path, tmp_path, NONE)
    assert result.verdict in ("valid", "unknown"), result.sentence


@pytest.mark.parametrize(("case", "seed"), [
    # All nodes were apart from each other when a point was to strike, and nobody came to any.
    (Case("joram", "clustered", "crash,clock,partition,points,stop", None, 40.0, 40.0, settings(
        "ack=majority detection_timeout=0.5 message_cache=300 transfer=held-back client_order=primary-first "
        "impatient=True op_timeout=1.0 consumers=2 surface=True partition_kind=random clients=outside min_ok=3 "
        "fault_lengths=0.47,2,6 fault_gap=1.0")), 309500001),
    # A group of two had no replica to give up, and nobody served when a third one was to come.
    (Case("joram", "lease", "reboot,packets,membership,partition,crash", 3, 40.0, 17.0, settings(
        "max_bytes_under_way=5000 max_outstanding=1 message_cache=1 log_keep=20 transfer=held-back send_window=200 "
        "spares=1 client_heartbeat=0.1 poll=0.05 membership_kind=add-all,remove min_ok=3 fault_lengths=2.2,5.25,6 "
        "fault_gap=0.3")), 309500110),
    # Nothing was sent on the links that a strike cut for a moment.
    (Case("fiorano", "register", "points,crash,disk,power", None, 34.0, 17.0, settings(
        "lease=0.5 idle_timeout=2.0 page=24 max_closed=20 max_outcomes=20 message_cache=1 surface=True threads=10 "
        "min_ok=3 fault_lengths=0.65,1.3,4 fault_gap=0.3")), 309500040),
    # Two families had no time: other faults ended late, as the system served late.
    (Case("fiorano", "security", "crash,pause,points,partition,rolling", None, 40.0, 17.0, settings(
        "heartbeat=0.5 idle_timeout=1.0 max_under_way=2 message_cache=300 client_order=primary-first "
        "loose_principals=4 pause_kind=random points_kind=partial,power min_ok=3 fault_lengths=0.47,0.95,1.05 "
        "fault_gap=2.0")), 309500041),
], ids=lambda each: each.workload if isinstance(each, Case) else str(each))  # fmt: skip
def test_a_family_that_was_not_proven_is_tried_again(case: Case, seed: int, tmp_path: Path) -> None:
    result = run_seed(case, seed, tmp_path, tmp_path, NONE)
    assert (result.verdict, "no proof" in result.sentence) == ("unknown", True), result.sentence
    patient = replace(case, settings={**case.settings, "fault_retries": "6"})
    result = run_seed(patient, seed, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence


@pytest.mark.parametrize(("case", "seed"), [
    # The connection of the only client fell silent while a point's fault was healed, and nothing was under way.
    (Case("qpid", "dialogue", "points", None, 16.0, 40.0, settings(
        "max_outstanding=1 message_cache=300 catchup_timeout=0.1 eviction_timeout=2.0 person=copies "
        "patterns=*=messages,*=none replicate=none virtual_address=auto clients_find=both same_replica=0.0 "
        "client_heartbeat=1.0 talkers=1 points_kind=partial,power min_ok=3 fault_retries=6 fault_lengths=1.05,1.3 "
        "fault_gap=1.0")), 420000009),
    # A rolling restart ended all connections after the last dialogue and before what was owed was taken.
    (Case("qpid", "dialogue", "stop,rolling", 4, 22.0, 40.0, settings(
        "max_bytes_under_way=5000 output_timeout=0.5 catchup_timeout=1.0 eviction_timeout=3.0 catchup_chunk=100 "
        "broker_network=own store_errors=carry-on client_order=primary-first op_timeout=6.0 min_ok=3 fault_retries=6 "
        "fault_lengths=0.6,0.95,1.3 fault_gap=0.1")), 430000027),
], ids=lambda each: each.workload if isinstance(each, Case) else str(each))  # fmt: skip
def test_it_is_valid(case: Case, seed: int, tmp_path: Path) -> None:
    result = run_seed(case, seed, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence
