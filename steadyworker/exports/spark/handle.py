"""
The export state in the ledger while Spark works; by this state, the job's next run finds Spark jobs that this run left.

The run stores a new name in this state before the first call to Spark, and adds Spark's location later.

| back end | action of a later run |
|---|---|
| Spark Connect | ends the session of each name before its own session begins |
| `spark://…` | none: the driver dies with the earlier run's worker process, and then the master ends the application |
| `local[…]` | none: the JVM dies with the host |

With every back end, late files go into a folder of the earlier run, and the later run does not read that folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec

from steadyworker.export import Services

_MOST = 64  # the largest number of names; a run that ends before it reaches Spark leaves a name


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """
    The stored state.

    Attributes:
        spark: The fence and the session name (a UUID) of each run whose Spark session has perhaps not ended.
        where: The location of the last run in Spark: server, session and tag, or master and application.
    """

    spark: tuple[tuple[int, str], ...] = ()
    where: dict[str, str] = {}


class SessionNames:
    """The session names of a run and of earlier runs; the run's name is stored before the run calls Spark."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.own = str(uuid.uuid4())
        found = self._stored()
        self.earlier = tuple(name for fence, name in found if fence < services.fence)
        self._store(Handle(spark=(*found, (services.fence, self.own))[-_MOST:]))

    def began(self, where: Mapping[str, str]) -> None:
        """
        Store that Spark has begun this run, and remove the names of the earlier runs, whose sessions have ended.

        If Spark has begun a stuck run again with another name, this method keeps both names.
        """
        mine = tuple(entry for entry in self._stored() if entry[0] >= self._services.fence)
        known = {name for _, name in mine}
        if (session := where.get("session")) and session not in known:
            mine = (*mine, (self._services.fence, session))[-_MOST:]
        if self.earlier or where:
            self._store(Handle(spark=mine, where=dict(where)))

    def _stored(self) -> tuple[tuple[int, str], ...]:
        try:
            return msgspec.json.decode(self._services.export_state() or b"", type=Handle).spark
        except msgspec.MsgspecError:
            return ()  # no state, or the state of another kind of export

    def _store(self, handle: Handle) -> None:
        self._services.save_export_state(msgspec.json.encode(handle))
