"""Names and numbers of the workload ``events`` that all its clients share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.test import Test
from workloads.feature_coverage import FEATURE_COVERAGE

FIRST_PORT = 7400
ORDERED, UNORDERED = "ordered", "unordered"
"""Values of the option ``reliability``: events must arrive in order, or need not."""
REPLICATED, NON_REPLICATED, SINGLE = "replicated", "non-replicated", "single-endpoint"
KINDS = (REPLICATED, NON_REPLICATED, SINGLE)
def topic_name(topic: int) -> str:
    """Return the name of a topic."""
    return f"e{topic}"


def links(options: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the (source, target) of each link between a test's topics: a ring, or a part of one."""
    topics = int(options["topics"])
    return [(topic, (topic + 1) % topics) for topic in range(min(int(options["links"]), topics)) if topics > 1]


COSTS = (0, 3, 5)
"""The costs of events, where all features are used: a key of the history then stands for a topic and a cost."""
_LINK_COSTS = (0, 2, 3, 4, 9)


def classes(options: Mapping[str, Any]) -> int:
    """Return the number of costs that events have: producers cycle through topics and costs."""
    return len(COSTS) if options.get(FEATURE_COVERAGE.name) else 1


def link_cost(test: Test, source: int) -> int:
    """Return the cost of the link from a topic."""
    return test.rng(f"surface/link/{source}").choice(_LINK_COSTS) if test.options.get(FEATURE_COVERAGE.name) else 0


def follows(cost: int, limit: int) -> bool:
    """Return whether an event of that cost passes a link of cost ``limit``: a link of cost 0 passes any event."""
    return limit == 0 or cost <= limit


