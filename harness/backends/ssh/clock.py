"""A program that runs on the node and sets the machine's clock wrong, and right again.

The right time is derived from a clock that cannot be set (CLOCK_MONOTONIC_RAW, clock_gettime(2)). The first fault of a
boot notes the difference in a file under /run, which vanishes at the next boot, like the wrong time. Services that
would correct the clock are stopped as long as it is wrong. The rate is the kernel's tick (adjtimex(2)), which can be
changed by a tenth.
"""

from __future__ import annotations

import shlex

NOTE = "/run/stormproof-clock"
"""A file on a node whose clock the harness has set wrong."""

MOST_SKEW = 0.1

_SERVICES = ("systemd-timesyncd", "chrony", "chronyd", "ntp", "ntpd", "ntpsec", "openntpd", "vboxadd-service",
             "virtualbox-guest-utils", "open-vm-tools")

_PROGRAM = f"""
import ctypes, json, os, subprocess, sys, time
NOTE, SERVICES = {NOTE!r}, {_SERVICES!r}
class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
                ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
                ("constant", ctypes.c_long), ("precision", ctypes.c_long), ("tolerance", ctypes.c_long),
                ("sec", ctypes.c_long), ("usec", ctypes.c_long), ("tick", ctypes.c_long), ("rest", ctypes.c_long * 32)]
def tick(value):
    timex = Timex(modes=0x4000, tick=value)
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex: " + os.strerror(ctypes.get_errno()))
def systemctl(*words):
    try:
        return subprocess.run(["systemctl", *words], capture_output=True).returncode == 0
    except OSError:
        return False
raw = lambda: time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
offset, rate = float(sys.argv[1]), float(sys.argv[2])
right = (offset, rate) == (0.0, 1.0)
try:
    with open(NOTE) as file:
        note = json.load(file)
except FileNotFoundError:
    if right:
        sys.exit()
    note = {{"services": [name for name in SERVICES if systemctl("is-active", name)]}}
    for name in note["services"]:
        systemctl("stop", name)
    note["ahead"] = time.time() - raw()
    with open(NOTE + ".new", "w") as file:
        json.dump(note, file)
    os.replace(NOTE + ".new", NOTE)
tick(round(10000 * rate))
time.clock_settime(time.CLOCK_REALTIME, raw() + note["ahead"] + offset)
if right:
    for name in note["services"]:
        systemctl("start", name)
    os.unlink(NOTE)
    print("clock")
"""


def set_script(python: str, offset: float, rate: float) -> str:
    """Return a shell script that makes the node's clock ``offset`` seconds wrong, running ``rate`` times as fast.

    (0, 1) sets it right, if it was set wrong before.
    """
    return f"{shlex.quote(python)} -c {shlex.quote(_PROGRAM)} {offset!r} {rate!r}"


def right_script() -> str:
    """Set the clock right if the harness set it wrong, with the node's default Python; then prints ``clock``."""
    return f"if [ -f {NOTE} ]; then {set_script('python3', 0.0, 1.0)} || exit 1; fi"
