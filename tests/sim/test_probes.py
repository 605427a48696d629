"""Probes: every program of the reference broker has one, or its invariants would observe nothing without a word."""

from __future__ import annotations

import importlib

import pytest

from nodes.reference.designs import DESIGNS, design_factory
from nodes.reference.designs.fiorano.gateway.service import LockGateway
from nodes.reference.designs.qpid.manager.manager import ClusterManager
from nodes.reference.storage.service import StorageService
from nodes.systems.reference.probes import PROBES

PROGRAMS = (*map(design_factory, DESIGNS), ClusterManager, LockGateway, StorageService)


def test_the_table_names_exactly_the_programs() -> None:
    assert {f"{kind.__module__}:{kind.__qualname__}" for kind in PROGRAMS} == set(PROBES)


@pytest.mark.parametrize("target", PROBES.values())
def test_each_probe_is_there_and_can_be_watched(target: str) -> None:
    module, _, name = target.partition(":")
    probe = getattr(importlib.import_module(module), name)
    assert callable(probe.observed) and callable(probe.pending)
