"""
The requests of running jobs, and what the runner does for each.

| request | the runner |
|---|---|
| `SaveCheckpoint`, `SaveExportState` | writes the value to the ledger |
| `MayCommit` | asks the ledger for permission; if the ledger refuses because the job is cancelled, the runner cancels the run |
| `FindEnded` | reads the jobs' states in the ledger |
| `RememberFolder` | records the folder on this host |
| `CallService` | opens a call of the service, and relays the service's events to the job |
| `CancelCall` | cancels that call; there is no reply |

The job receives the ledger's own reply to a request that writes.
A request to the ledger waits while the ledger does not respond, or the run is not trusted.
If the ledger refuses the request, the runner drops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steadyworker.errors import LedgerUnavailable
from steadyworker.events import Checkpointed
from steadyworker.link import (
    SERVICE_ERROR,
    CallService,
    CancelCall,
    FindEnded,
    LedgerRequest,
    MayCommit,
    RememberFolder,
    SaveCheckpoint,
    SaveExportState,
)
from steadyworker.runner import report
from steadyworker.runner.runs import Runs
from steadyworker.runner.state import Deps, Run, RunnerState, ServiceEvent
from steadyworker.slots.base import Asked


class Requests:
    """The part of the runner that serves the requests of running jobs."""

    def __init__(self, deps: Deps, state: RunnerState, runs: Runs, post: Callable[[ServiceEvent], None]) -> None:
        self._deps = deps
        self._state = state
        self._runs = runs
        self._post = post

    def serve(self, asked: Asked) -> None:
        """
        Serve a request, or let the request wait for the ledger.

        While the ledger does not respond, only the keeper calls the ledger, because each call can take up to 10 s.
        """
        run = self._state.by_fence.get(asked.fence)
        if run is None or run.slot is None:
            return
        if run.dropped:
            if not isinstance(asked.request, CancelCall):
                run.slot.reply(asked.fence, asked.id, None, refused="fenced")
            return
        match asked.request:
            case SaveCheckpoint() | SaveExportState() | MayCommit() | FindEnded() as request:
                if self._state.trusted(run) and not self._state.ledger_away:
                    self._use_ledger(run, asked, request)
                else:
                    run.waiting.append(asked)
            case RememberFolder(folder=folder):
                self._deps.remember_folder(folder)
                run.slot.reply(asked.fence, asked.id, None)
            case CallService() as call:
                self._call(run, asked.id, call)
            case CancelCall(call=id):
                run.cancel_call(id)

    def go_on(self, run: Run) -> None:
        """Serve the requests that waited; while the run is not trusted, they wait again."""
        waiting, run.waiting = run.waiting, []
        for asked in waiting:
            self.serve(asked)

    def _use_ledger(self, run: Run, asked: Asked, request: LedgerRequest) -> None:
        assert run.slot is not None, "a run with a request is in a slot"
        ledger = self._deps.ledger
        reply: list[str] | None = None
        try:
            match request:
                case SaveCheckpoint(value=checkpoint):
                    write, granted = "checkpoint", ledger.checkpoint(run.token, checkpoint)
                case SaveExportState(value=state):
                    write, granted = "export_state", ledger.export_state(run.token, state)
                case MayCommit():
                    permit = ledger.may_commit(run.token)
                    if permit.cancel_reason is not None:
                        self._runs.cancel(run, permit.cancel_reason)
                        run.slot.reply(asked.fence, asked.id, None, refused="cancelled")
                        return
                    write, granted = "may_commit", permit.granted
                case FindEnded(uids=uids):
                    write, granted, reply = "", True, sorted(ledger.ended(uids))
        except LedgerUnavailable as error:
            run.waiting.append(asked)
            self._runs.ledger_lost(str(error))
            return
        if not granted:
            run.waiting.append(asked)
            self._runs.drop(run, write)
            return
        if isinstance(request, SaveCheckpoint):
            run.saved = request.value
            self._deps.emit(Checkpointed(**report.about(run.token, self._deps.clock), size=len(request.value)))
        run.slot.reply(asked.fence, asked.id, reply)

    def _call(self, run: Run, id: int, call: CallService) -> None:
        assert run.slot is not None, "a run with a request is in a slot"
        fence = run.token.fence

        def emit(event: Mapping[str, Any]) -> None:
            self._post(ServiceEvent(fence, id, event))

        service = self._deps.services.get(call.service)
        if service is None:
            text = (
                f"Expected the name of a service of this worker process, got {call.service!r}: "
                "correct the name, or restart the worker process if its code has changed."
            )
            run.slot.reply(fence, id, {SERVICE_ERROR: text})
            return
        try:
            run.calls[id] = service.open(call.data, run.token.uid, fence, emit)
        except Exception as error:  # noqa: BLE001 - a service's error must fail only the job's call, not the runner
            text = f"Expected the service {call.service!r} to accept the request, got {type(error).__name__}: {error}"
            run.slot.reply(fence, id, {SERVICE_ERROR: text})

    def relay(self, reported: ServiceEvent) -> None:
        """Relay an event of a service to the job that called the service, if the job's run is still in its slot."""
        run = self._state.by_fence.get(reported.fence)
        if run is None or run.slot is None or reported.id not in run.calls:
            return
        end = bool(reported.event.get("end"))
        if end:
            del run.calls[reported.id]
        run.slot.reply(reported.fence, reported.id, dict(reported.event), end=end)
