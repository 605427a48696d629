"""Names of anomalies within a page, derived from their content: a stored link still leads to the same anomaly after the
run was checked again, even if its position has changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9._/:+-]{1,60}", re.ASCII)
_TAKEN = re.compile(r"(lanes|log|find|axis|play|now|copy|plot)-", re.ASCII)
"""Prefixes of the ids of the page's own elements."""


def content_names(anomalies: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a name for each of (check, anomaly), in their order: ``lost-1/102``, extended by distinguishing parts
    where another anomaly has the same name."""
    forms = [_forms(check, data) for check, data in anomalies]
    names = [form[0] for form in forms]
    for longer in (1, 2):
        counts = Counter(names)
        names = [forms[at][longer] if counts[name] > 1 else name for at, name in enumerate(names)]
    seen: Counter[str] = Counter()
    for at, name in enumerate(names):  # identical anomalies that are reported twice
        seen[name] += 1
        names[at] = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return names


def _forms(check: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return three names, each more specific than the one before."""
    kind, value, key = str(data.get("kind") or check), data.get("value"), data.get("key")
    text = json.dumps([check, kind, value, key, data.get("ops"), data.get("detail")], default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]
    where = f"@{key}" if isinstance(key, int) and key >= 0 else ""
    short = f"{kind}-{value}" if value not in (None, "") else f"{kind}-{where}" if where else ""
    if not _PLAIN.fullmatch(short.replace("@", "")) or _TAKEN.match(short):
        kind = kind if _PLAIN.fullmatch(kind) else "anomaly"
        return (unlike := f"anomaly-{kind}-{digest}"), unlike, unlike
    return short, f"{check}.{short}{where if value not in (None, '') else ''}", f"{short}~{digest}"
