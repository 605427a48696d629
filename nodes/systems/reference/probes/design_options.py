"""Options of a design that it must take as they are, and those that it must refuse, with the name of the option.

The numbers are the checker's, not those of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nodes.reference.api import ConfigError
from nodes.reference.config import parse_config
from nodes.reference.designs.fiorano.configuration import FioranoOptions
from nodes.reference.designs.qpid.options import QpidOptions


class _Option(NamedTuple):
    """``taken`` maps each value to what the design makes of it; ``attribute`` is the option's name in the code."""

    attribute: str
    taken: Sequence[tuple[Any, Any]]
    refused: Sequence[Any]


def _seconds(attribute: str, least: float = 0.001) -> _Option:
    """Return an option of less than an hour."""
    return _Option(attribute, [(least, least), (3599, 3599.0)], [0, least - 0.001, -1, 3600, True, "1", None])


def _whole(attribute: str, least: int = 1, most: int = 0) -> _Option:
    """Return an option of whole numbers; most 0: as large as one likes."""
    beyond = [most + 1] if most else []
    return _Option(attribute, [(each, each) for each in (least, most or 1 << 40)],
                   [least - 1, -1, 1.5, True, "1", None, *beyond])


def _choice(attribute: str, *choices: str) -> _Option:
    return _Option(attribute, [(each, each) for each in choices], ["", "other", 1, True])


def _switch(attribute: str) -> _Option:
    return _Option(attribute, [(True, True), (False, False)], ["true", 1, 0, None])


_SECRET = _Option("secret", [("s", "s")], [1, "\n"])
_PEERS = {"n1": ["h", 1], "n2": ["h", 2], "n3": ["h", 3]}
_QPID: Mapping[str, _Option] = {
    "replicate": _choice("replicate", "messages", "configuration", "none"),
    "patterns": _Option("patterns", [("a*=none,*=messages", (("a*", "none"), ("*", "messages"))), ("", ())],
                        ["a", "=none", "a=", "a=other", "a=none;b"]),
    "catchup_timeout": _seconds("catchup_timeout"), "catchup_backlog": _whole("catchup_backlog"),
    "catchup_chunk": _whole("catchup_chunk", most=1 << 24), "detection_timeout": _seconds("silence", 0.05),
    "manager": _choice("manager", "builtin", "none", "keepalived", "pacemaker"),
    "manager_address": _Option("manager_address", [(["h", 1], ("h", 1))], ["h:1", ["h"], [1, 1], ["h", "1"]]),
    "manager_lease": _seconds("manager_lease", 0.05), "eviction_timeout": _seconds("eviction"),
    "sequence_bits": _whole("sequence_bits", 3, 62), "store": _choice("store", "sync", "async", "none"),
    "store_errors": _choice("store_errors", "abort", "carry-on"), "standby": _choice("standby", "hot", "cold"),
    "answer_page": _whole("answer_page", most=16_000),
    "as_documented": _Option("as_documented", [("", frozenset()), ("LM1,LC6", frozenset({"LM1", "LC6"}))],
                             ["LM9", "lm1", "LM1 LM2"]),
    "virtual_address": _Option("virtual_address", [("10.0.0.9", "10.0.0.9"), ("", "")],
                               ["10.0.0.256", "0.0.0.0", "224.0.0.1", "name", 1]),
    "dr": _Option("disaster", [("n2,n3", ("n2", "n3")), ("", ())], ["n4", "n1,n2,n3"]),
    "dr_counted": _Option("disaster_counted", [("yes", True), ("no", False)], [True, "maybe"]), "secret": _SECRET,
}  # fmt: skip
_LAYER = {"Primary": True, "Lockfile": "/lock", "BackupHAIPAddress": "h", "BackupHAPort": 2,
          "GatewayServerIPAddress": "g", "GatewayServerPort": 1}  # fmt: skip
_FIORANO: Mapping[str, _Option] = {
    "mode": _Option("mode", [("replicated", "replicated")], ["", "other", 1]), "lease": _seconds("lease"),
    "heartbeat": _seconds("heartbeat"), "start_alone": _switch("start_alone"), "lock": _switch("lock"),
    "fencing": _switch("fencing"), "stamps": _choice("stamps", "counter", "wall-clock"),
    "database": _Option("database", [(["h", 1], ("h", 1))], ["h:1", ["h"], ["h", 0], ["h", 65536], [1, 1]]),
    "database_timeout": _seconds("database_timeout"), "page": _whole("page"), "page_window": _whole("page_window"),
    "as_documented": _Option("as_documented", [("", frozenset()), ("database", frozenset({"database"}))], ["LM1"]),
    "secret": _SECRET,
    "Primary": _Option("", [], ["true", 1, None]), "Lockfile": _Option("", [], ["", 1]),
    "BackupHAIPAddress": _Option("", [], ["", 1]), "BackupHAPort": _Option("", [], [0, 65536, "2", True]),
    "GatewayServerIPAddress": _Option("", [], ["", 1]), "GatewayServerPort": _Option("", [], [0, 65536, "1", True]),
    "Unknown": _Option("", [], [1]),
}  # fmt: skip
_DESIGNS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, Any], Mapping[str, _Option]]] = {
    "qpid": (QpidOptions.from_config, _PEERS, {}, _QPID),
    "fiorano": (FioranoOptions.from_config, {name: _PEERS[name] for name in ("n1", "n2")}, _LAYER, _FIORANO),
}
"""Design -> its reader of options, peers, options that it needs, and all options."""


def misjudged(design: str) -> str:
    """Describe an option of a design that is taken or refused wrongly; empty if there is none."""
    if design not in _DESIGNS:
        return ""
    read, peers, least, options = _DESIGNS[design]

    def take(**more: Any) -> Any:
        return read(parse_config({"node": "n1", "design": design, "data": "/data", "peers": peers,
                                  "options": {**least, **more}}))

    for name, option in options.items():
        for value, expected in option.taken:
            try:
                found = getattr(take(**{name: value}), option.attribute)
            except ConfigError as error:
                return f"{value!r} as {name} is refused: {error}"
            if found != expected:
                return f"{value!r} as {name} is taken as {found!r}, and is {expected!r}"
        for value in option.refused:
            if wrong := _not_refused(take, name, value):
                return wrong
    return _lacking(read, peers, design, least)


def _lacking(read: Callable[..., Any], peers: Mapping[str, Any], design: str, least: Mapping[str, Any]) -> str:
    """Describe how a configuration is taken that lacks an option which the design needs; empty if none is."""
    for name in least:
        options = {each: value for each, value in least.items() if each != name}
        content = {"node": "n1", "design": design, "data": "/data", "peers": peers, "options": options}
        if wrong := _not_refused(lambda content=content, **_: read(parse_config(content)), name, "nothing"):
            return wrong
    return ""


def _not_refused(take: Callable[..., Any], name: str, value: Any) -> str:
    """Describe how a wrong value is taken, or refused without the option's name."""
    try:
        take(**{name: value})
    except ConfigError as error:
        return "" if str(error).startswith(f"options.{name}") else f"{value!r} as {name} is refused by: {error}"
    except Exception as error:  # whatever is raised instead is what an operator would see
        return f"{value!r} as {name} ends in {error!r}"
    return f"{value!r} is taken as {name}"
