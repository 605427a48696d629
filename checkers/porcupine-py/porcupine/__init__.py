"""porcupine: a checker of the linearizability of histories of concurrent operations.

Names are imported when they are first used, so that the command can catch any error of their import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import (
        check_events,
        check_events_verbose,
        check_histories,
        check_operations,
        check_operations_verbose,
    )
    from .columns import ColumnsResult, check_queue_columns, check_register_columns
    from .compiling import compile_step
    from .formats import read_history
    from .kernels.codes import BLIND, PURE
    from .minimal import Minimal, minimal_history
    from .models import MODELS, CompiledModel, Encoded, Model, model_named
    from .models.base import Builder
    from .types import NO_OUTPUT, CheckResult, Event, Operation, Partition, PorcupineError, Result
    from .visual import Annotation, html, write_html

_NAMES = {
    "check": (
        "check_events",
        "check_events_verbose",
        "check_histories",
        "check_operations",
        "check_operations_verbose",
    ),
    "columns": ("ColumnsResult", "check_queue_columns", "check_register_columns"),
    "compiling": ("compile_step",),
    "formats": ("read_history",),
    "kernels.codes": ("BLIND", "PURE"),
    "minimal": ("Minimal", "minimal_history"),
    "models": ("MODELS", "CompiledModel", "Encoded", "Model", "model_named"),
    "models.base": ("Builder",),
    "types": ("NO_OUTPUT", "CheckResult", "Event", "Operation", "Partition", "PorcupineError", "Result"),
    "visual": ("Annotation", "html", "write_html"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "BLIND",
    "MODELS",
    "NO_OUTPUT",
    "PURE",
    "Annotation",
    "Builder",
    "CheckResult",
    "ColumnsResult",
    "CompiledModel",
    "Encoded",
    "Event",
    "Minimal",
    "Model",
    "Operation",
    "Partition",
    "PorcupineError",
    "Result",
    "check_events",
    "check_events_verbose",
    "check_histories",
    "check_operations",
    "check_operations_verbose",
    "check_queue_columns",
    "check_register_columns",
    "compile_step",
    "html",
    "minimal_history",
    "model_named",
    "read_history",
    "write_html",
]


def __getattr__(name: str) -> Any:
    """Return a public name, or a module of the package, at its first use."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        try:
            value = importlib.import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
