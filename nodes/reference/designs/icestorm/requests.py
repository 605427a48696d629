"""Requests to the topic manager about topics, subscribers and links.

A request is a SEND to ``/topic-manager`` with the header ``x-request`` and a JSON object as body. The RECEIPT carries
``x-answer`` (JSON), or ``x-error``: a word that names the mistake, or ``unknown`` if it cannot be determined whether
the request was carried out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodes.reference.api import Config
from nodes.reference.designs.icestorm.options import ONE
from nodes.reference.designs.icestorm.topics import MAX_NAME, ORDERED, UNORDERED, Change, RequestError, TopicDatabase
from nodes.reference.option_values import MAX_PAGE

_NAME = re.compile(r"\S+")
_ENDPOINT = re.compile(r"[A-Za-z0-9_.\-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_CHANGES = ("create", "destroy", "subscribe", "unsubscribe", "remove", "link", "unlink")
_QUESTIONS = ("list", "retrieve", "subscribers", "links", "publisher", "non-replicated-publisher")
_LISTS = ("list", "subscribers", "links")
_MAX_NUMBER = 1 << 31
_MAX_ENDPOINT = 260
_MAX_PORT = 65_535


class Request(NamedTuple):
    """A request; ``subject`` is a subscriber or a linked topic, ``number`` a retry count or a cost.

    ``since`` identifies the subscription of a subscriber that is to be removed. ``after`` is the last name of the
    previous page. ``page``: approximate size in bytes of a page of a list.
    """

    kind: str
    topic: str = ""
    subject: str = ""
    endpoint: str = ""
    number: int = 0
    reliability: str = UNORDERED
    replica: str = ""
    since: str = ""
    after: str = ""
    page: int = MAX_PAGE

    @property
    def changes(self) -> bool:
        """Tell whether it changes the database."""
        return self.kind in _CHANGES

    @property
    def change(self) -> Change:
        """The request in the database's format."""
        parts: dict[str, tuple[Any, ...]] = {
            "subscribe": (self.subject, self.endpoint, self.number, self.reliability),
            "unsubscribe": (self.subject,), "remove": (self.subject, self.since),
            "link": (self.subject, self.number), "unlink": (self.subject,),
        }
        return [self.kind, self.topic, *parts.get(self.kind, ())]


def read_request(headers: Mapping[str, str], body: bytes) -> Request:
    """Parse the request in a frame.

    Raises:
        CommandError: it is not a valid request (``bad-request``, ``bad-name``, ``bad-endpoint``, ``bad-qos``).
    """
    kind = headers.get("x-request", "")
    if kind not in (*_CHANGES, *_QUESTIONS) or kind == "remove":
        raise RequestError("bad-request")
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RequestError("bad-request") from None
    if not isinstance(content, dict):
        raise RequestError("bad-request")
    topic = "" if kind == "list" else _name(content.get("topic"))
    if kind in ("subscribe", "unsubscribe"):
        subject = _name(content.get("subscriber"))
        if kind == "unsubscribe":
            return Request(kind, topic, subject)
        endpoint = content.get("endpoint")
        if not isinstance(endpoint, str) or not is_endpoint(endpoint):
            raise RequestError("bad-endpoint")
        reliability = content.get("reliability", UNORDERED)
        if reliability not in (ORDERED, UNORDERED):
            raise RequestError("bad-qos")
        return Request(kind, topic, subject, endpoint, _number(content.get("retryCount", 0), -1), reliability)
    if kind in ("link", "unlink"):
        return Request(kind, topic, _name(content.get("target")), number=_number(content.get("cost", 0), 0))
    after = content.get("after", "")
    return Request(kind, topic, after=_name(after) if after != "" else "")


def is_endpoint(value: str) -> bool:
    """Tell whether the text is ``host:port``."""
    return (len(value) <= _MAX_ENDPOINT and _ENDPOINT.fullmatch(value) is not None
            and 0 < int(value.rpartition(":")[2]) <= _MAX_PORT)


def is_request(value: Any) -> bool:
    """Tell whether a value from a peer is a request."""
    return (isinstance(value, list) and tuple(map(type, value)) == tuple(map(type, Request("")))
            and value[0] in (*_CHANGES, *_QUESTIONS))


def is_answer(value: Any) -> bool:
    """Tell whether a value from a peer answers a request: the outcome, and the answer or the mistake."""
    return (isinstance(value, list) and len(value) == 2
            and (value[0] in ("done", "unknown", "unavailable")
                 or (value[0] == "mistake" and isinstance(value[1], str) and value[1].isprintable())))


_ROWS: Mapping[str, tuple[type, ...]] = {"subscribers": (str, str, int, str), "links": (str, int)}


def is_answer_to(request: Request, value: Any) -> bool:
    """Tell whether a value from a peer is a valid answer to this request."""
    if not is_answer(value) or value[0] != "done":
        return is_answer(value)
    answer = value[1]
    if request.changes:
        return answer is True
    if request.kind == "retrieve":
        return isinstance(answer, str)
    if not isinstance(answer, list):
        return False
    if request.kind in _ROWS:
        rows = all(isinstance(row, list) and tuple(map(type, row)) == _ROWS[request.kind] for row in answer)
        return rows and all(row[0].isprintable() for row in answer)
    return all(isinstance(each, str) and each.isprintable() for each in answer)


def answer_headers(request: Request, answer: Any) -> dict[str, str]:
    """Return the receipt's headers: ``x-answer``, and ``x-more`` with the page's last name if the list is longer."""
    headers = {}
    if request.kind in _LISTS:
        count = _fitting(answer, request.page)
        if count < len(answer):
            last = answer[count - 1]
            headers["x-more"] = last if isinstance(last, str) else last[0]
        answer = answer[:count]
    return {"x-answer": json.dumps(answer, separators=(",", ":")), **headers}


def _fitting(rows: list[Any], page: int) -> int:
    """Return the number of these rows that fit on a page: at least one, if there are any."""
    size = 0
    for count, row in enumerate(rows):
        # Each byte that needs an escape becomes two.
        size += 2 * len(json.dumps(row))
        if size > page and count:
            return count
    return len(rows)


def answer_question(database: TopicDatabase, config: Config, request: Request) -> Any:
    """Answer a request that changes nothing; a list is cut after one page plus one row, which shows that more follow.
    Raises CommandError ``no-such-topic``."""
    answer = _whole_answer(database, config, request)
    return answer[: _fitting(answer, request.page) + 1] if request.kind in _LISTS else answer


def _whole_answer(database: TopicDatabase, config: Config, request: Request) -> Any:
    if request.kind == "list":
        return [name for name in sorted(database.topics) if name > request.after]
    topic = database.topics.get(request.topic)
    if topic is None:
        raise RequestError("no-such-topic")
    if request.kind == "subscribers":
        found = sorted(topic.subscribers.values(), key=lambda s: s.ident)
        return [[s.ident, s.endpoint, s.retry_count, s.reliability] for s in found if s.ident > request.after]
    if request.kind == "links":
        return [[name, cost] for name, cost in sorted(topic.links.items()) if name > request.after]
    if request.kind == "publisher" and config.options.get("publisher_endpoints") != ONE:
        return list(config.client_addresses.values())
    if request.kind in ("publisher", "non-replicated-publisher"):
        return [config.client_addresses.get(request.replica or config.node, "")]
    return request.topic


def _name(value: Any) -> str:
    # An unprintable string may not even be encodable.
    if not isinstance(value, str) or not _NAME.fullmatch(value) or not value.isprintable() or len(value) > MAX_NAME:
        raise RequestError("bad-name")
    return value


def _number(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MAX_NUMBER:
        raise RequestError("bad-qos")
    return value
