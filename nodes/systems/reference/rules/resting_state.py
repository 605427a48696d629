"""The objects that the idle reference broker's engine keeps in memory, for all designs."""

from __future__ import annotations

from stormproof.contracts.resting_state import LEFT, RestingLimit

_LEFT = "messages that nobody has taken; whether any may be left is the check of depths"
_MADE = "queues and durable subscriptions stay until somebody deletes them: as many as clients have made"
_ON_THEIR_WAY = "messages for a server that takes none, having lost its storage, wait; whether any is lost has a check"
_VALUES = "the last value of each key that clients have put"
_STRANGERS = "connections that were lost without a word, or never logged in, until their time is over"
_PREPARED = "branches that are prepared stay until somebody ends them, whose client may be gone"
_CONTENT = "headers of what open branches hold, of which clients may send hundreds"
_RULES = "principals, rights and administered objects"
_REMEMBERED = "remembered for clients that come back, the latest ones only"

ENGINE = (
    *(RestingLimit(name, _LEFT, more=LEFT)
      for name in ("Message.", "Queue.", "Shared.", "EngineState.messages", "table messages", "table bodies")),
    *(RestingLimit(name, _ON_THEIR_WAY, more=LEFT) for name in ("Outgoing.", "PeerServer.outgoing", "table outgoing")),
    RestingLimit("LastValues.", _VALUES, more=60),
    *(RestingLimit(name, _STRANGERS, more=40)
      for name in ("ReferenceBroker.logins", "ReferenceBroker.sessions", "Session.", "SessionTimers.", "Flow.",
                   "OutputBuffer.", "task LoopRuntime._handling", "task OutputBuffer.", "task IceStormDesign._serve")),
    RestingLimit("ReferenceBroker.silences", "the silences of the latest sessions that were ended for them", more=20),
    *(RestingLimit(name, _MADE, more=120)
      for name in ("EngineState.queues", "EngineState.durables", "table queues", "TopicRoutes.")),
    *(RestingLimit(name, _RULES, more=60) for name in ("Security.", "_Row.", "Guard.", "table security")),
    *(RestingLimit(name, _PREPARED, more=60)
      for name in ("EngineState.branches", "EngineState.prepared", "Transaction.", "TransactionItem.",
                   "table transactions", "table items")),
    RestingLimit("TransactionItem.args", _CONTENT, more=2000),
)  # fmt: skip
"""Objects of all designs."""

REMEMBERED = (
    *(RestingLimit(name, _REMEMBERED, "max_closed")
      for name in ("EngineState.closed", "EngineState._closed_ids", "table closed")),
    *(RestingLimit(name, _REMEMBERED, "max_outcomes")
      for name in ("EngineState.outcomes", "EngineState._outcome_ids", "table outcomes")),
)
"""Objects of designs whose clients have reliable connections and branches."""
