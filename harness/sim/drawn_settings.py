"""Which settings the default campaign draws, and why it leaves others at their defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.draw import Draw
from stormproof.contracts.option import Option
from workloads.catalog import WORKLOADS

_ENDING = "says how long the end of a run may take, and a run that gets no further has a verdict of its own"
_JUDGING = "says what the verdict needs, and changes nothing in the run"
_BY_KIND = "is `any` by default: the kinds come in turn"
_OF_A_RUN = "is given by a person for one run"
DESIGNS = ("standalone", "joram", "icestorm", "qpid", "fiorano")
UNDRAWN: Mapping[str, str] = {
    **dict.fromkeys(("drain_patience", "drain_limit"), _ENDING),
    **dict.fromkeys(("both_sides", "majority_ok", "min_kept", "owed", "resume_within"), _JUDGING),
    **dict.fromkeys(("bug", "trace", "rolling_version", "rolling_settings", "disk_files", "disk_bits"), _OF_A_RUN),
    "min_ok": "is lowered in every drawn run, which may be short and slow",
    "open_timeout": "is how long a client waits for a connection: op_timeout, which is drawn, limits all that follows",
    "publish_for": "leaves the brokers idle for a part of the run, in which nothing could be lost",
    "topic_patterns": "has both forms of patterns by default",
    "retry_count": "ends a subscription after so many failures, as the document says; with few, hardly one is left",
    "ha_servers": "multiplies the brokers; `nodes`, which is drawn, does so within each server",
    "guard": "names the system's kind of lock: with another one there is no run, or it is another workload",
    **dict.fromkeys(("holders", "stall"), "lets a stalled holder write late, which only the tokens of a lease refuse"),
    "refuse_older": "weakens what the lock must guarantee",
    "refuse_old_tokens": "lets two holders write by design when it is off, which no lease can prevent",
    "repository_bytes": "is reached by months of messages; `repository_messages` is its twin",
    "repository_messages": "makes a full repository refuse messages, which count as not sent",
    "max_down": "keeps a majority up; partitions and power losses of all nodes try what happens without one",
    "stop_grace": "is the time before a stop becomes a kill; both are drawn as faults",
    "rolling_patience": "is how long the harness waits for a restarted node, and changes nothing in it",
    "clock_skew": "is limited by what the leases tolerate: more is outside of every design's promise",
    "partition_helpers": _BY_KIND,
    "fault_network": "is drawn by designs whose brokers can have a network of their own",
    **dict.fromkeys(("pause_program", "kill_program", "stop_program", "gateway_program", "shared_db_program",
                     "manager_target", "gateway_target", "shared_db_target"),
                    "is `any` by default: programs and targets are drawn for each fault"),
    **dict.fromkeys((f"{family.replace('-', '_')}_kind" for family in FAULTS.names()), _BY_KIND),
}  # fmt: skip
"""Option of workloads, faults or the reference broker -> why no campaign draws it."""


@dataclass(frozen=True)
class Setting:
    """A setting, where it is declared, the draws that concern it, and otherwise the reason why there are none."""

    place: str
    option: Option
    draws: tuple[Draw, ...]
    why: str


def settings_of(systems: tuple[str, ...] = DESIGNS) -> Iterator[Setting]:
    """Yield all settings of these systems, of the workloads that they can run, and of all faults that are drawn."""
    workloads = [(name, WORKLOADS.load(name)) for name in WORKLOADS.names()]
    families = [(name, FAULTS.load(name)) for name in FAULTS.names() if FAULTS.load(name).drawn]
    loaded = [(name, SYSTEMS.load(name)) for name in systems]
    runs = [(name, each) for name, each in workloads
            if any(set(each.needs) <= system.provides for _, system in loaded)]  # fmt: skip
    by_workload = tuple(draw for _, each in runs for draw in each.draws)
    by_system = tuple(draw for _, system in loaded for draw in system.drawing.draws)
    for name, system in loaded:
        own = (*system.drawing.draws, *by_workload)
        for option in system.options:
            yield _setting(name, option, own, {**UNDRAWN, **system.drawing.undrawn})
    for name, workload in runs:
        for option in workload.options:
            yield _setting(f"workload {name}", option, (*workload.draws, *by_system), UNDRAWN)
    for name, family in families:
        for option in family.options:
            yield _setting(f"fault {name}", option, (*family.draws, *by_system), UNDRAWN)


def _setting(place: str, option: Option, draws: tuple[Draw, ...], reasons: Mapping[str, str]) -> Setting:
    found = tuple(dict.fromkeys((draw.name, draw.values, draw.share) for draw in draws if draw.name == option.name))
    return Setting(place, option, tuple(Draw(*each) for each in found), "" if found else reasons.get(option.name, ""))


def drawn_settings_page(systems: tuple[str, ...] = DESIGNS) -> str:
    """Return the page of all settings of the reference designs: which values are drawn, or why none are."""
    lines = ["# Settings that the default campaign draws", "",
             "Made by `make docs` from the declarations. `stormproof simulate` without a workload, fault or setting",
             "draws each of these in the share of runs that is told; the other runs have the default."]  # fmt: skip
    place, late = "", list[str]()
    for each in settings_of(systems):
        if each.place != place:
            place = each.place
            lines += [*late, "", f"## {place}", "", "| setting | default | drawn |", "| --- | --- | --- |"]
            late = []
        told = "; ".join(f"{', '.join(f'`{value}`' for value in dict.fromkeys(draw.values))} in {draw.share:.0%}"
                         for draw in each.draws)  # fmt: skip
        row = f"| `{each.option.name}` | `{each.option.default}` | {told or f'never: it {each.why}'} |"
        (lines if told else late).append(row)
    return "\n".join([*lines, *late]) + "\n"
