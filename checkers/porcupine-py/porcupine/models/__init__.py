"""The built-in models, by name."""

from __future__ import annotations

from typing import Any

from ..types import PorcupineError
from ..values import freeze
from .base import CompiledModel, Encoded, Model
from .containers import FifoQueue, PriorityQueue, Set, Stack, UnorderedQueue
from .others import Counter, FencedLock, Lock, Log, ReentrantLock
from .registers import CasRegister, KeyValue, Register
from .transactions import MultiRegister

MODELS: dict[str, type[CompiledModel]] = {
    model.name: model
    for model in (
        Register,
        CasRegister,
        KeyValue,
        MultiRegister,
        FifoQueue,
        UnorderedQueue,
        Set,
        Stack,
        PriorityQueue,
        Lock,
        ReentrantLock,
        FencedLock,
        Counter,
        Log,
    )
}
"""Every built-in model's class."""


def model_named(name: str, initial: Any = None) -> CompiledModel:
    """Return the built-in model of that name; ``initial`` is the first value of a register.

    Raises PorcupineError for an unknown name, with a list of the known ones, and for an ``initial`` of a model that
    takes none.
    """
    if name not in MODELS:
        raise PorcupineError(f'unknown model "{name}"; known: {", ".join(MODELS)}')
    model: type[Any] = MODELS[name]
    if initial is None:
        made: CompiledModel = model()
        return made
    if not model.takes_initial:
        taking = ", ".join(n for n, m in MODELS.items() if m.takes_initial)
        raise PorcupineError(f"model {name} takes no initial value; those that do: {taking}")
    made = model(initial)
    return made


__all__ = ["MODELS", "CompiledModel", "Encoded", "Model", "freeze", "model_named"]
