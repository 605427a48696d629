"""Names of anomalies within a page by what they are: an address that was kept leads to the same one after the run was
checked again, wherever it then stands."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9._/:+-]{1,60}", re.ASCII)
_TAKEN = re.compile(r"(lanes|log|find|axis|play|now|copy|plot)-", re.ASCII)
"""How elements of the page's own are named."""


def content_names(anomalies: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A name for each of (check, anomaly), in their order: ``lost-1/102``, or with what tells it apart where another
    one has that, too."""
    forms = [_forms(check, data) for check, data in anomalies]
    names = [form[0] for form in forms]
    for longer in (1, 2):
        counts = Counter(names)
        names = [forms[at][longer] if counts[name] > 1 else name for at, name in enumerate(names)]
    seen: Counter[str] = Counter()
    for at, name in enumerate(names):  # the very same anomaly, told twice
        seen[name] += 1
        names[at] = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return names


def _forms(check: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    """Three names, each telling apart more than the one before."""
    kind, value, key = str(data.get("kind") or check), data.get("value"), data.get("key")
    text = json.dumps([check, kind, value, key, data.get("ops"), data.get("detail")], default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]
    where = f"@{key}" if isinstance(key, int) and key >= 0 else ""
    short = f"{kind}-{value}" if value not in (None, "") else f"{kind}-{where}" if where else ""
    if not _PLAIN.fullmatch(short.replace("@", "")) or _TAKEN.match(short):
        kind = kind if _PLAIN.fullmatch(kind) else "anomaly"
        return (unlike := f"anomaly-{kind}-{digest}"), unlike, unlike
    return short, f"{check}.{short}{where if value not in (None, '') else ''}", f"{short}~{digest}"
