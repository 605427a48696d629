"""Named points in the brokers where a fault hurts: ``runtime.point(NAME)`` is one line there, and does nothing outside
the simulator. A new one is a constant here with a sentence, and its line."""

from __future__ import annotations

from collections.abc import Mapping

APPENDED = "joram.appended"
STORED = "joram.stored"
COMMITTED = "joram.committed"

JORAM_POINTS: Mapping[str, str] = {
    APPENDED: "a follower has taken entries into its log in memory: nothing is on its disk, nothing acknowledged",
    STORED: "a follower has its log on disk and has not acknowledged it: the master does not know of this copy",
    COMMITTED: "a master has applied what is committed and has answered no client: its successor must have it all",
}
