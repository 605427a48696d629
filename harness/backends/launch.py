"""Ways to give the harness's child separate namespaces on this machine: as root, as a user, through sudo."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
            "--propagation", "private")
BY_SUDO = "user namespace through sudo"
_LIMIT_S = 5.0

# The operations of a run: a bridge, a nested namespace with its own /proc and host name, an nftables table.
_TRIAL = (
    'PATH="$PATH:/usr/sbin:/sbin"; ip link add stormproof0 type bridge && '
    "unshare --net --mount --pid --uts --ipc --fork --mount-proc --kill-child --propagation private sh -c "
    "'hostname n1 && mount --bind /etc/hosts /etc/hosts && "
    'printf "add table inet stormproof\\ndelete table inet stormproof\\n" | nft -f -\''
)


@dataclass(frozen=True)
class Launch:
    """A way to start the child: ``prefix`` precedes its command; None when no way works.

    ``detail`` describes the way, or the reasons for its absence; ``mend`` is a remedy for the user.
    """

    prefix: tuple[str, ...] | None
    detail: str
    mend: str = ""


@functools.cache
def how_to_launch() -> Launch:
    """Try root, an unprivileged user namespace, sudo, in this order; never raises."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "nft") if not find_tool(tool)]
    if missing:
        packages = sorted({_PACKAGES[tool] for tool in missing})
        return Launch(None, f"{', '.join(missing)} not found",
                      f"run: {as_root()}apt-get install {' '.join(packages)}")
    reasons = []
    for label, prefix in _ways():
        why_not = _try(prefix)
        if why_not is None:
            return Launch(prefix, label)
        reasons.append(f"{label}: {why_not}")
    return Launch(None, "; ".join(reasons), _mend())


def find_tool(name: str) -> str | None:
    """Return the path of a program; also searches folders that ordinary users' PATH omits."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


_PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "nft": "nftables"}


def _ways() -> list[tuple[str, tuple[str, ...]]]:
    if os.geteuid() == 0:
        return [("as root", _UNSHARE)]
    own = (_UNSHARE[0], "--user", "--map-root-user", *_UNSHARE[1:])
    ways: list[tuple[str, tuple[str, ...]]] = [("user namespace", own)]
    if shutil.which("sudo"):
        # Where only privileged processes may create user namespaces (Ubuntu 24.04), one capability suffices. The
        # process keeps this user's identity, because this user must own all files that it writes. sudo drops TMPDIR,
        # and changing the user drops the parent-death signal by which `unshare` ends its child.
        become = ("sudo", "-n", "--preserve-env", "env", f"TMPDIR={tempfile.gettempdir()}",
                  "setpriv", f"--reuid={os.getuid()}", f"--regid={os.getgid()}", "--init-groups",
                  "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin", "--pdeathsig=KILL")
        ways.append((BY_SUDO, (*become, *own)))
    return ways


def _try(prefix: Sequence[str]) -> str | None:
    """Return why a child started this way cannot perform a run's operations; None when it can."""
    try:
        done = subprocess.run([*prefix, "sh", "-c", _TRIAL], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=_LIMIT_S, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_LIMIT_S:g} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"status {done.returncode}"


def _mend() -> str:
    if os.geteuid() == 0:
        return "in a container, start it with: docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN ..."
    for setting, wanted in (("kernel/apparmor_restrict_unprivileged_userns", "0"),
                            ("kernel/unprivileged_userns_clone", "1"), ("user/max_user_namespaces", "15000")):
        path = Path("/proc/sys") / setting
        blocked = "1" if wanted == "0" else "0"
        if path.exists() and path.read_text().strip() == blocked:
            return f"run: sudo sysctl -w {setting.replace('/', '.')}={wanted}"
    return "run it as root, or let this user call sudo without a password"


def as_root() -> str:
    """Return the prefix of a command that only root may run: ``sudo `` or nothing."""
    return "" if os.geteuid() == 0 else "sudo "
