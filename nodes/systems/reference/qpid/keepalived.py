"""keepalived as the cluster manager of qpid.

It has no quorum and does not fence: in a partition there is a primary on either side, as long as the partition lasts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nodes.reference.designs.qpid.options import KEEPALIVED
from nodes.systems.reference.qpid.external_manager import OutsideCluster

_TOP_PRIORITY = 200
_NO_ADDRESS = "169.254.61.1 dev lo"
"""VRRP always needs an address; this one is unused."""

# Called each second as `check`, and as `notify` at each change of state. The service backup must always run. A MASTER
# that can't be primary reports this by failing the check: then another node becomes MASTER, which keepalived would not
# arrange when a start script refuses. A check that takes longer than a second overlaps with the next one.
_SCRIPT = """#!/bin/sh
cd {base} || exit 1
check() {{
    ./qpid-backup status
    case $? in
    0) ;;
    3) ./qpid-backup start || return ;;
    *) ./qpid-backup stop; ./qpid-backup start; return 1 ;;
    esac
    [ "$(cat role 2>/dev/null)" != MASTER ] || ./qpid-primary status || ./qpid-primary start
}}
case $1 in
check)
    exec 9> checking
    flock --nonblock 9 || exit "$(cat checked 2>/dev/null || echo 1)"
    check
    status=$?
    echo $status > checked
    exit $status ;;
notify)
    echo "$4" > role
    case $4 in
    MASTER) ./qpid-primary start ;;
    STOP) ./qpid-backup stop ;;
    *) ./qpid-primary stop ;;
    esac ;;
esac
"""

_CONFIGURATION = """global_defs {{
    router_id {node}
    script_user root
}}
vrrp_script qpid {{
    script "{base}/qpid-keepalived check"
    interval 1
    timeout 60
    fall 2
    rise 1
}}
vrrp_instance qpid {{
    version 3
    state BACKUP
    nopreempt
    interface eth0
    virtual_router_id 61
    priority {priority}
    advert_int 0.2
    unicast_src_ip {address}
    unicast_peer {{
{peers}
    }}
    virtual_ipaddress {{
        {virtual}
    }}
    track_script {{
        qpid
    }}
    notify "{base}/qpid-keepalived notify"
}}
"""


class KeepalivedCluster(OutsideCluster):
    """Brokers with keepalived next to each."""

    manager_programs = (KEEPALIVED,)

    def manager_files(self, node: str) -> Mapping[str, str]:
        """Return the script that keepalived calls, and its configuration."""
        base, names = self.backend.node_dir(node), self.test.node_names
        peers = "\n".join(f"        {self.backend.address(name)}" for name in names if name != node)
        virtual = f"{self.virtual_address} dev eth0" if self.virtual_address else _NO_ADDRESS
        configuration = _CONFIGURATION.format(base=base, node=node, priority=_TOP_PRIORITY - names.index(node),
                                              address=self.backend.address(node), peers=peers, virtual=virtual)
        return {f"{base}/qpid-keepalived": _SCRIPT.format(base=base), f"{base}/keepalived.conf": configuration}

    def manager_command(self, node: str, program: str) -> Sequence[str]:
        """Return the command that runs keepalived in the foreground and logs its actions.

        keepalived considers a killed process running until it is reaped, so its pid files are removed first.
        """
        base = self.backend.node_dir(node)
        pids = [f"{base}/keepalived-main.pid", f"{base}/keepalived-vrrp.pid"]
        command = ["keepalived", "--dont-fork", "--log-console", "--log-detail", "--no-syslog",
                   f"--use-file={base}/keepalived.conf", f"--pid={pids[0]}", f"--vrrp_pid={pids[1]}"]  # fmt: skip
        return ["sh", "-c", f"rm -f {shlex.join(pids)}; exec {shlex.join(command)}"]
