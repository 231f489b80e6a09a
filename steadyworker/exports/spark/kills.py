"""
Cancels all jobs of a Spark Connect session, also the jobs of operations that have already ended.

Spark's own interrupt is not enough.
The interrupt reaches the thread of an operation only once; a second interrupt does nothing.
When that thread ends, the server cancels only the present jobs of the operation (`ExecuteThreadRunner.interrupt`, `.execute`).
But since Spark 4 that thread only waits, and the threads of a pool begin the jobs of an adaptive query.
An interrupt does not reach the threads of the pool (`ShuffleExchangeLike.triggerFuture`, `ResultQueryStageExec`).
A stage that is being compiled, or is sampled but not yet shuffled, still begins its job, and the job runs to its end.
The release of the session does not end such a job, because `SessionHolder.close` only interrupts.

When an operation fails, the server cancels all jobs with the operation's tag; this tag consists of names that the client chooses.
So each job of a marked session has the tag of its own operation, and the tags of `_MOST` operations that do not exist yet.
To cancel all present jobs of the session, the client runs one of these `_MOST` operations.
The operation is an empty plan, which fails at once.
An operation's id works only once (INVALID_HANDLE.OPERATION_ABANDONED).
The ids are computed from the session's name, so that every process that knows the name can cancel the jobs.

The tags reach the jobs by the setting `spark.job.tags`.
`SQLExecution.withSQLConfPropagated` copies a session's settings to the properties of its jobs.
This setting replaces the tags of the server, so the setting also contains the tag of the operation (`ExecuteJobTag`).
These facts are from the classes of Spark 4.3.0, and were tested with its server.
"""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql import SparkSession

_MOST = 24  # ids: 14 to cancel a job, and some for each host that died during the job
_WITHIN = 10.0  # seconds for the server to refuse the empty plan
_SETTING = "spark.job.tags"
_USED = ("INVALID_HANDLE.OPERATION_ABANDONED", "INVALID_HANDLE.OPERATION_ALREADY_EXISTS")


class Closed(Exception):
    """The session was released."""


def mark(session: SparkSession, name: str) -> Kills:
    """Add the tags to all later jobs of the session with this name; return the object that cancels them."""
    client: Any = session.client
    made = client._execute_plan_request_with_metadata  # noqa: SLF001 - it makes all requests

    def marked(*args: Any, **options: Any) -> Any:
        request = made(*args, **options)
        request.operation_id = request.operation_id or str(uuid.uuid4())
        _set_tags(session, client, name, request.operation_id)
        return request

    client._execute_plan_request_with_metadata = marked  # noqa: SLF001
    _set_tags(session, client, name)  # for jobs without an operation; such jobs only list files
    return Kills(session, name)


class Kills:
    """
    The cancels of a session's jobs; each cancel uses up one id.

    Args:
        session: The session; the client of any process will do.
        name: The session's name, a UUID.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._client: Any = session.client
        self._name, self._left = name, _ids(name)

    def kill(self) -> None:
        """
        Cancel the jobs that the session runs now; a job that begins later is not cancelled.

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
            except Exception as error:  # noqa: BLE001 - gRPC can raise anything; the operation must fail
                text = str(error)
                if any(used in text for used in _USED):
                    continue  # an earlier host or an earlier run has used this id
                if "SESSION_CLOSED" in text:
                    raise Closed from None
            return  # if the server is gone, the caller's next call fails


def _set_tags(session: SparkSession, client: Any, name: str, *operation: str) -> None:
    start = f"SparkConnect_OperationTag_User_{client._user_id}_Session_{name}_Operation_"  # noqa: SLF001
    session.conf.set(_SETTING, ",".join(start + one for one in (*operation, *_ids(name))))


def _ids(name: str) -> list[str]:
    """Return the ids of the operations that cancel, in the order of their use."""
    return [str(uuid.uuid5(uuid.UUID(name), f"kill {number}")) for number in range(_MOST)]
