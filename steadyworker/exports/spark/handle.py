"""
The export state in the ledger while Spark works: from it the next run of the job finds what this run left running.

It is stored before Spark hears of the run, with a name that is made here; where Spark is, is added as soon as it is known.

| back end | what a later run does |
|---|---|
| Spark Connect | ends the session of each name before its own begins |
| `spark://…` | nothing: the driver is the earlier run's host, which dies with its worker process, and the master ends the application then |
| `local[…]` | nothing: the JVM is the host's |

In each case what is written late is written into a folder of its own, which nobody reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec

from steadyworker.exports.base import Services

_MOST = 64  # names: a run that never got as far as Spark leaves one behind


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is stored.

    Attributes:
        spark: Fence of a run and its name at the Spark server, a UUID; of all that nobody knows to have ended.
        where: Where Spark is, and how it calls the last one: server, session and tag, or master and application.
    """

    spark: tuple[tuple[int, str], ...] = ()
    where: dict[str, str] = {}


class Names:
    """The name of a run that is about to ask Spark, stored; and those of the runs before it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.own = str(uuid.uuid4())
        found = self._stored()
        self.earlier = tuple(name for fence, name in found if fence < services.fence)
        self._store(Handle(spark=(*found, (services.fence, self.own))[-_MOST:]))

    def began(self, where: Mapping[str, str]) -> None:
        """
        Spark has begun this run, and what the earlier ones left there has ended.

        It may have begun it a second time and by another name, because the first was stuck; then both are kept.
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
            return ()  # nothing, or what another kind of export stored

    def _store(self, handle: Handle) -> None:
        self._services.save_export_state(msgspec.json.encode(handle))
