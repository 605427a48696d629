"""Shell scripts that control a program that the harness did not start: the listener at a port of a host.

Signals go only to the listening processes, because their process group may contain unrelated ones. Stopped processes
are recorded in a file, so that they can be continued whatever happens to the run.
"""

from __future__ import annotations

import shlex

from harness.backends.process import CLOCK, SETTLE_S, hundredths

NOTE = "stopped"
"""The file in a node's folder that names the stopped processes: pid and start time a line."""
_STEP_S = 0.02

# listening: the processes at $port. look PID: sets $state ('' when it has ended) and $born (proc(5), field 22).
_PRELUDE = CLOCK + """
listening() { ss -Hltnp "sport = :$port" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -un; }
look() {
  state= born=
  s=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  set -- ${s##*) }
  state=$1 born=${20}
  case $state in Z|X|x) state= ;; esac
}
command -v ss >/dev/null || { echo "there is no program ss (apt-get install iproute2)"; exit 1; }
pids=$(listening)
"""
_RESUME = """
if [ -f "$note" ]; then
  while read -r pid was; do
    look "$pid"
    [ -n "$state" ] && [ "$born" = "$was" ] && kill -s CONT "$pid" 2>/dev/null
  done < "$note"
  rm -f "$note"
fi
"""


def state_script(port: int) -> str:
    """Print ``running PID BORN``, ``paused PID BORN`` or ``dead``, for the first listener that lives."""
    return _script(port, """
for pid in $pids; do
  look "$pid"
  case $state in
    '') ;;
    T|t) echo "paused $pid $born"; exit 0 ;;
    *) echo "running $pid $born"; exit 0 ;;
  esac
done
echo dead
""")  # fmt: skip


def pause_script(port: int, folder: str) -> str:
    """Stop the listening processes, and wait until they are stopped."""
    return _script(port, f"""
note={shlex.quote(f"{folder}/{NOTE}")}
[ -n "$pids" ] || {{ echo "nobody listens at port $port"; exit 1; }}
for pid in $pids; do look "$pid"; echo "$pid $born"; done >> "$note" || exit 1
kill -s STOP $pids || exit 1
limit {hundredths(SETTLE_S)}
for pid in $pids; do
  while look "$pid"; [ "$state" != T ] && [ "$state" != t ]; do
    in_time || {{ echo "process $pid is not stopped"; exit 1; }}
    sleep {_STEP_S}
  done
done
""")  # fmt: skip


def resume_script(port: int, folder: str) -> str:
    """Continue the stopped processes; fails when no process listens."""
    return _script(port, f"note={shlex.quote(f'{folder}/{NOTE}')}\n"
                         f'[ -n "$pids" ] || {{ echo "nobody listens at port $port"; exit 1; }}\n{_RESUME}')


def resume_left_script(folder: str) -> str:
    """Continue the processes that a run left stopped; harmless where there are none."""
    note = shlex.quote(f"{folder}/{NOTE}")
    return f"note={note}; if [ -f \"$note\" ]; then ( port=0{_PRELUDE}{_RESUME} ); echo 'a stopped process'; fi"


def end_script(port: int, signal: str, seconds: float) -> str:
    """End the listening processes with a signal, and wait until they have ended.

    Those that still exist after that number of seconds get SIGKILL. The last signal is printed.
    """
    return _script(port, f"""
born_of() {{ look "$1"; echo "$born"; }}
before=$(for pid in $pids; do echo "$pid:$(born_of "$pid")"; done)
[ -z "$pids" ] || kill -s {signal} $pids || exit 1
[ -z "$pids" ] || kill -s CONT $pids 2>/dev/null
limit {hundredths(seconds)}
signal=
for each in $before; do
  pid=${{each%%:*}} was=${{each#*:}}
  while look "$pid"; [ -n "$state" ] && [ "$born" = "$was" ]; do
    if ! in_time; then
      [ -z "$signal" ] || {{ echo "process $pid outlived SIGKILL"; exit 1; }}
      limit {hundredths(SETTLE_S)}
      signal=KILL
    fi
    [ -z "$signal" ] || kill -s KILL "$pid" 2>/dev/null
    sleep {_STEP_S}
  done
done
[ -z "$pids" ] || echo "SIG${{signal:-{signal}}}"
""")  # fmt: skip


def _script(port: int, body: str) -> str:
    return f"port={port}\n{_PRELUDE}\n{body}"
