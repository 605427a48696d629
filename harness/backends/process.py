"""Shell scripts that control a program on a node: one process group, named by a file with pid and start time.

The start time (field 22 of ``/proc/PID/stat``, proc(5)) distinguishes it from a later process with the same pid. Every
script runs on the node, so pids are those of the node's pid namespace.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from stormproof.contracts.backend import DEAD, PAUSED, RUNNING, ProcessState
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

SETTLE_S = 3.0 * TIMEOUT_FACTOR
"""Seconds allowed for the operating system to start, stop, continue or end the processes of a group."""

_STEP_S = 0.01

CLOCK = """
clock() { read -r now rest < /proc/uptime; now=$((${now%.*} * 100 + 1${now#*.} - 100)); }
limit() { clock; last=$((now + $1)); }
in_time() { clock; [ $now -lt $last ]; }
"""
"""Shell functions that measure time by the machine's uptime, which no clock change affects.

They do not count steps, because on a loaded machine each step takes long. ``limit N`` starts a limit of N hundredths of
a second; ``in_time`` succeeds until it has passed.
"""

# lookup: sets $state and $pid from the pid file; $pid remains set when only the group's leader has ended. members: sets
# $all and $stopped, the numbers of the group's live and stopped processes. settle N CONDITION: waits for the condition,
# N hundredths of a second at most.
_PRELUDE = f"""{CLOCK}
lookup() {{
  state=dead pid=
  {{ read -r pid born < "$file"; }} 2>/dev/null || return 0
  s=$(cat "/proc/$pid/stat" 2>/dev/null) || return 0
  set -- ${{s##*) }}
  [ "${{20}}" = "$born" ] || {{ pid=; return 0; }}
  case $1 in Z|X|x) ;; T|t) state=paused ;; *) state=running ;; esac
}}
members() {{
  all=0 stopped=0
  for f in /proc/[0-9]*/stat; do
    {{ read -r s < "$f"; }} 2>/dev/null || continue
    set -- ${{s##*) }}
    [ "$3" = "$pid" ] || continue
    case $1 in Z|X|x) ;; T|t) all=$((all + 1)) stopped=$((stopped + 1)) ;; *) all=$((all + 1)) ;; esac
  done
}}
signal() {{ kill -s "$1" -- "-$pid" 2>/dev/null || :; }}
settle() {{
  limit $1
  while members; ! eval "$2"; do
    in_time || return 1
    sleep {_STEP_S}
  done
}}
need() {{ [ $state != dead ] || {{ echo "the $name is not running"; exit 1; }}; }}
"""

# The inner shell records its own pid and start time, both of which survive the exec.
_LAUNCH = (
    'f=$1; shift; echo "$$ $(cut -d" " -f22 "/proc/$$/stat")" > "$f.new" && mv -f "$f.new" "$f" && exec "$@"'
)


def start_script(pid_file: str, argv: Sequence[str], log: str, folder: str) -> str:
    """Launch ``argv`` in ``folder`` as leader of a new session, with its output appended to ``log``."""
    program, words, log = shlex.quote(argv[0]), shlex.join(argv), shlex.quote(log)
    body = f"""
lookup
[ $state = dead ] || {{ echo "the $name is already running as process $pid"; exit 1; }}
cd {shlex.quote(folder)} || exit 1
command -v {program} >/dev/null || {{ printf 'there is no program %s' {program}; exit 1; }}
mkdir -p "$(dirname {log})" && rm -f "$file" && : >> {log} || exit 1
( setsid sh -c {shlex.quote(_LAUNCH)} sh "$file" {words} </dev/null >>{log} 2>&1 & )
limit {hundredths(SETTLE_S)}
until [ -s "$file" ]; do
  in_time || {{ echo "the $name did not start"; exit 1; }}
  sleep {_STEP_S}
done
"""
    return _script(pid_file, body)


def state_script(pid_file: str) -> str:
    """Print ``running PID BORN``, ``paused PID BORN`` or ``dead``."""
    return _script(pid_file, "lookup; [ $state != dead ] || pid= born=; echo $state $pid $born")


def stop_script(pid_file: str, timeout: float) -> str:
    """End the group with SIGTERM, and the rest with SIGKILL after ``timeout`` seconds; print the last signal."""
    # A stopped process handles SIGTERM only once it continues.
    body = f"""
lookup
[ -n "$pid" ] || exit 0
members
[ $all != 0 ] || exit 0
signal TERM; signal CONT
settle {hundredths(timeout)} '[ $all = 0 ]' && {{ echo SIGTERM; exit 0; }}
{_END}
echo SIGKILL
"""
    return _script(pid_file, body)


def kill_script(pid_file: str) -> str:
    """End the group with SIGKILL and wait until it has ended; works also when only its leader is dead."""
    return _script(pid_file, f'lookup\n[ -n "$pid" ] || exit 0\n{_END}')


def kill_all_script(folder: str, last: str) -> str:
    """End every program with a file in the folder as ``kill_script`` does.

    ``last`` is ended last, because others may start it.
    """
    last = shlex.quote(f"{folder}/{last}.pid")
    return f"""
end() (
  file=$1 name=$(basename "$1" .pid)
{_PRELUDE}
  lookup
  [ -n "$pid" ] || exit 0
  {_END}
)
for each in {shlex.quote(folder)}/*.pid; do
  [ "$each" = {last} ] || [ ! -e "$each" ] || end "$each" || exit 1
done
end {last}
"""


def pause_script(pid_file: str) -> str:
    """Stop all processes of the group and wait until they are stopped; fails when it is dead."""
    done = f"settle {hundredths(SETTLE_S)} '[ $all = $stopped ]'"
    return _script(pid_file, f'lookup; need; signal STOP\n{done} || {{ echo "still not stopped"; exit 1; }}')


def resume_script(pid_file: str) -> str:
    """Continue all processes of the group and wait until they run; fails when it is dead."""
    done = f"settle {hundredths(SETTLE_S)} '[ $stopped = 0 ]'"
    return _script(pid_file, f'lookup; need; signal CONT\n{done} || {{ echo "still stopped"; exit 1; }}')


def parse_state(text: str) -> ProcessState:
    """Return the state that ``state_script`` printed; raises BackendError for any other text."""
    state, *rest = text.split() or [""]
    if state == DEAD:
        return ProcessState(DEAD)
    if state in (RUNNING, PAUSED) and len(rest) == 2 and rest[0].isdigit():
        return ProcessState(state, int(rest[0]), rest[1])
    raise BackendError(f"unexpected process state {text!r}")


def hundredths(seconds: float) -> int:
    """Convert seconds into the unit of ``CLOCK``."""
    return max(1, round(100 * seconds))


_END = f"""signal KILL
settle {hundredths(SETTLE_S)} '[ $all = 0 ]' || {{ echo "$all processes outlived SIGKILL"; exit 1; }}"""


def _script(pid_file: str, body: str) -> str:
    name = shlex.quote(posixpath.basename(pid_file).removesuffix(".pid"))
    return f"file={shlex.quote(pid_file)} name={name}\n{_PRELUDE}\n{body}"
