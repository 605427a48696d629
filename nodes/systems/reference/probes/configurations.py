"""Configurations that a broker must take as they are, and those that it must refuse, with the name of the setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.config import parse_config

_LEAST: Mapping[str, Any] = {"node": "n1", "design": "standalone", "data": "/data"}
_FULL: Mapping[str, Any] = {
    **_LEAST, "host": "h", "port": 65535, "login": "l", "passcode": "p", "peers": {"n1": ["h", 0]},
    "client_addresses": {"n1": "h:1"}, "server": 32767, "networks": [[["h", 1]]], "servers": {"1": [["h", 2]]},
    "clustered": {"/queue/c": [32767, 1], "/topic/c": [1]}, "services": [["class"], ["another", "argument"]],
    "options": {"seed": 1, "secret": "s", "max_queues": 1, "linger": 0.5, "answer_page": 16_000},
}
_TAKEN: Mapping[str, Any] = {
    "node": "n1", "design": "standalone", "host": "h", "port": 65535, "login": "l", "passcode": "p",
    "peers": {"n1": ("h", 0)}, "client_addresses": {"n1": "h:1"}, "server": 32767, "networks": [[("h", 1)]],
    "servers": {1: [("h", 2)]}, "clustered": {"/queue/c": [32767, 1], "/topic/c": [1]},
    "services": [("class",), ("another", "argument")],
}
"""What ``_FULL`` says, as a broker keeps it."""
_RIGHT: Sequence[Mapping[str, Any]] = (
    _LEAST, _FULL, {**_LEAST, "servers": {"1": [["h", 1]]}, "clustered": {"/queue/c": [0, 1]}},
    {**_LEAST, "networks": [[["h", 1]], [["h", 2]]]},
)
_WRONG: Mapping[str, Sequence[Any]] = {
    "node": ("", 1), "design": ("", "none"), "data": (1,), "host": ("",), "login": (None,), "passcode": ("", 1),
    "port": (-1, 65536, True, "1", 1.0),
    "peers": ([], {"n1": "h:1"}, {"n1": ["h", -1]}, {"n1": ["h"]}, {"n1": [1, 1]}),
    "client_addresses": ([], {"n1": "h"}, {"n1": 1}),
    "server": (-1, 32768, "0", True),
    "networks": ({}, [[]], [[["h", 1], ["h", 2]]], [["h:1"]], ["h:1"]),
    "servers": ([], {"32767": [["h", 1]]}, {"one": [["h", 1]]}, {"1": []}, {"1": "h:1"}, {"32768": [["h", 1]]}),
    "clustered": ([], {"c": [1]}, {"/queue/c": [7]}, {"/queue/c": 1}, {"/queue/c": [True]}),
    "services": ({}, [[]], ["class"], [[1]], [["class", 1]]),
    "options": ([], {"seed": "1"}, {"seed": True}, {"secret": 1}, {"secret": "\n"}, {"max_queues": 0},
                {"max_queues": 1.5}, {"max_queues": True}, {"linger": "2"}, {"linger": 0}, {"answer_page": 16_001}),
    "unknown": (1,),
}
"""Setting -> values that can't be used."""


def misjudged() -> str:
    """Describe a configuration that is taken or refused wrongly; empty if there is none."""
    for right in _RIGHT:
        try:
            parse_config(right)
        except ConfigError as error:
            return f"{right} is refused: {error}"
    taken = parse_config(_FULL)
    for name, value in _TAKEN.items():
        if getattr(taken, name) != value:
            return f"{name} is taken as {getattr(taken, name)!r}, and is {value!r}"
    wrong = [(name, {**_FULL, name: value}) for name, values in _WRONG.items() for value in values]
    wrong += [(name, {key: value for key, value in _FULL.items() if key != name}) for name in _LEAST]
    return next((told for name, content in wrong if (told := _not_refused(name, content))), _not_refused("", [_FULL]))


def _not_refused(name: str, content: Any) -> str:
    """Describe how a wrong setting is taken, or refused without its name."""
    said = content.get(name, "nothing") if name else content
    try:
        parse_config(content)
    except ConfigError as error:
        return "" if str(error).startswith(name) else f"a wrong value of {name} is refused by: {error}"
    except Exception as error:  # whatever is raised instead is what an operator would see
        return f"{said!r} as {name or 'the whole'} ends in {error!r}"
    return f"{said!r} is taken as {name or 'the whole'}"
