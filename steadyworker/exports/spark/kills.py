"""
How all jobs of a Spark Connect session are cancelled, those too that nobody waits for any longer.

Spark's own interrupt is not enough.
It reaches the thread of an operation, once: a second one finds it interrupted and does nothing, and when that thread ends, the
server cancels the jobs that the operation has *then* (`ExecuteThreadRunner.interrupt` and `.execute`).
But since Spark 4 that thread only waits: each exchange, broadcast and result stage of an adaptive query is prepared, and its
jobs are begun, by a thread of a pool (`ShuffleExchangeLike.triggerFuture`, `ResultQueryStageExec`), which hears nothing.
A stage whose code is being compiled, or whose range was sampled and not yet shuffled, begins its job after all, and the job
runs to its end; releasing the session does not end it either (`SessionHolder.close` interrupts, no more).

The server cancels jobs by tag whenever an operation fails, and an operation's tag is made of names that the client gives.
So each job of a marked session carries, beside the tag of its own operation, those of `_MOST` operations that do not exist
yet; one of these, an empty plan that fails at once, cancels all that the session runs at that moment.
An id serves once (INVALID_HANDLE.OPERATION_ABANDONED), and ids follow from the session's name, so that whoever knows the
name can do this.

The tags reach the jobs as the setting `spark.job.tags`: `SQLExecution.withSQLConfPropagated` makes a session's settings
properties of its jobs, and that one replaces the tags which the server has set (`ExecuteJobTag`, the same in it).
Read in the classes of Spark 4.3.0, and tried with its server.
"""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql import SparkSession

_MOST = 24  # 14 to cancel a job, and some for each host that died under it
_WITHIN = 10.0  # seconds for the server to say that there is no plan in it
_SETTING = "spark.job.tags"
_USED = ("INVALID_HANDLE.OPERATION_ABANDONED", "INVALID_HANDLE.OPERATION_ALREADY_EXISTS")


class Closed(Exception):
    """The session was released."""


def mark(session: SparkSession, name: str) -> Kills:
    """What cancels all that this session, of this name, runs from now on."""
    client: Any = session.client
    made = client._execute_plan_request_with_metadata  # noqa: SLF001 - the one place where all requests are made

    def marked(*args: Any, **options: Any) -> Any:
        request = made(*args, **options)
        request.operation_id = request.operation_id or str(uuid.uuid4())
        _set_tags(session, client, name, request.operation_id)
        return request

    client._execute_plan_request_with_metadata = marked  # noqa: SLF001
    _set_tags(session, client, name)  # jobs that only look at files belong to no operation
    return Kills(session, name)


class Kills:
    """
    What cancels the jobs of a session, as often as there are ids left for it.

    Args:
        session: The session, on any client.
        name: Its name, a UUID.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._client: Any = session.client
        self._name, self._left = name, _ids(name)

    def kill(self) -> None:
        """
        Cancel what the session runs now; a job that begins later is not touched.

        Raises:
            Closed: The session was released.
        """
        from pyspark.sql.connect.proto import ExecutePlanRequest

        while self._left:
            request = ExecutePlanRequest(session_id=self._name, operation_id=self._left.pop(0))
            request.user_context.user_id = self._client._user_id  # noqa: SLF001
            request.plan.root.SetInParent()
            metadata = self._client._builder.metadata()  # noqa: SLF001
            try:
                list(self._client._stub.ExecutePlan(request, metadata=metadata, timeout=_WITHIN))  # noqa: SLF001
            except Exception as error:  # noqa: BLE001 - gRPC's; an error is what is asked for
                text = str(error)
                if any(used in text for used in _USED):
                    continue  # by an earlier host of this run, or an earlier run
                if "SESSION_CLOSED" in text:
                    raise Closed from None
            return  # where there is no server any longer, the caller's next question finds it out


def _set_tags(session: SparkSession, client: Any, name: str, *operation: str) -> None:
    start = f"SparkConnect_OperationTag_User_{client._user_id}_Session_{name}_Operation_"  # noqa: SLF001
    session.conf.set(_SETTING, ",".join(start + one for one in (*operation, *_ids(name))))


def _ids(name: str) -> list[str]:
    """Of the operations that fail, in the order of their use."""
    return [str(uuid.uuid5(uuid.UUID(name), f"kill {number}")) for number in range(_MOST)]
