"""The built-in models, by name."""

from __future__ import annotations

from ..types import PorcupineError
from .base import CompiledModel, Encoded, Model, freeze
from .containers import FifoQueue, PriorityQueue, Set, Stack, UnorderedQueue
from .others import Counter, FencedLock, Lock, Log, ReentrantLock
from .registers import CasRegister, KeyValue, Register

MODELS: dict[str, type[CompiledModel]] = {
    model.name: model
    for model in (
        Register,
        CasRegister,
        KeyValue,
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


def model_named(name: str) -> CompiledModel:
    """The built-in model of that name. Raises PorcupineError, which lists the names, for an unknown one."""
    if name not in MODELS:
        raise PorcupineError(f'unknown model "{name}"; known: {", ".join(MODELS)}')
    return MODELS[name]()


__all__ = ["MODELS", "CompiledModel", "Encoded", "Model", "freeze", "model_named"]
