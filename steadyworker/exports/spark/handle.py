"""
The export state in the ledger while Spark works; by this state, the job's next run finds Spark jobs that this run left.

The run stores a new name in this state before the first call to Spark, and adds Spark's location later.

| back end | action of a later run |
|---|---|
| Spark Connect | ends the session of each name before its own session begins |
| `spark://…`, `yarn`, `k8s://…` | none: the driver dies with the earlier run's worker process, and then the cluster ends the application |
| `local[…]` | none: the JVM dies with the host |

With every back end, late files go into a folder of the earlier run, and the later run does not read that folder.

The state also has the snapshots of tables of Iceberg and Delta, so that a later run reads the same rows.
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
        snapshots: For each table in a snapshot, by its name in SQL, its kind and its snapshot.
    """

    spark: tuple[tuple[int, str], ...] = ()
    where: dict[str, str] = {}
    snapshots: dict[str, str] = {}


class SessionNames:
    """
    The session names of a run and of earlier runs; the run's name is stored before the run calls Spark.

    Attributes:
        own: The name of this run's session.
        earlier: The names of earlier runs' sessions.
        snapshots: The snapshots that an earlier run has stored.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self.own = str(uuid.uuid4())
        found = self._stored()
        self.earlier = tuple(name for fence, name in found.spark if fence < services.fence)
        self.snapshots = found.snapshots
        self._store(Handle(spark=(*found.spark, (services.fence, self.own))[-_MOST:], snapshots=found.snapshots))

    def began(self, where: Mapping[str, str], snapshots: Mapping[str, str] | None = None) -> None:
        """
        Store that Spark has begun this run, and in which snapshots; remove the names of the earlier runs, whose sessions have ended.

        If Spark has begun a stuck run again with another name, this method keeps both names.
        """
        found = self._stored()
        mine = tuple(entry for entry in found.spark if entry[0] >= self._services.fence)
        known = {name for _, name in mine}
        if (session := where.get("session")) and session not in known:
            mine = (*mine, (self._services.fence, session))[-_MOST:]
        if self.earlier or where or snapshots:
            self._store(Handle(spark=mine, where=dict(where), snapshots={**found.snapshots, **(snapshots or {})}))

    def _stored(self) -> Handle:
        try:
            return msgspec.json.decode(self._services.export_state() or b"", type=Handle)
        except msgspec.MsgspecError:
            return Handle()  # no state, or the state of another kind of export

    def _store(self, handle: Handle) -> None:
        self._services.save_export_state(msgspec.json.encode(handle))
