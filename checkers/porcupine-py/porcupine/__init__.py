"""porcupine: is a history of concurrent operations linearizable?"""

from __future__ import annotations

from .check import check_events, check_events_verbose, check_operations, check_operations_verbose
from .columns import ColumnsResult, check_queue_columns, check_register_columns
from .compiling import compile_step
from .formats import read_history
from .kernels.codes import BLIND, PURE
from .minimal import Minimal, minimal_history
from .models import MODELS, CompiledModel, Encoded, Model, model_named
from .models.base import Builder
from .types import NO_OUTPUT, CheckResult, Event, Operation, Partition, PorcupineError, Result
from .visual import Annotation, html, write_html

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
