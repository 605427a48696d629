"""porcupine: is a history of concurrent operations linearizable?"""

from __future__ import annotations

from .check import check_events, check_events_verbose, check_operations, check_operations_verbose
from .models import MODELS, CompiledModel, Model, model_named
from .types import NO_OUTPUT, CheckResult, Event, Operation, Partition, PorcupineError, Result

__all__ = [
    "MODELS",
    "NO_OUTPUT",
    "CheckResult",
    "CompiledModel",
    "Event",
    "Model",
    "Operation",
    "Partition",
    "PorcupineError",
    "Result",
    "check_events",
    "check_events_verbose",
    "check_operations",
    "check_operations_verbose",
    "model_named",
]
