"""
The requests of running jobs: save a checkpoint or an export's state, permit a commit, remember a folder, call a service.

The job receives the ledger's own reply to a request that writes.
Such a request waits while the ledger is away or the run is not trusted; after a refusal the runner drops the run.
If the ledger refuses a commit because the job is cancelled, the runner cancels the run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steadyworker.errors import LedgerUnavailable
from steadyworker.events import Checkpointed
from steadyworker.link import CANCEL, SERVICE_ERROR
from steadyworker.runner import report
from steadyworker.runner.runs import Runs
from steadyworker.runner.state import Deps, Run, RunnerState, ServiceEvent
from steadyworker.slots.base import Asked


class Requests:
    """Serves the requests of running jobs."""

    def __init__(self, deps: Deps, state: RunnerState, runs: Runs, post: Callable[[ServiceEvent], None]) -> None:
        self._deps = deps
        self._state = state
        self._runs = runs
        self._post = post

    def asked(self, asked: Asked) -> None:
        """
        Serve a request, or let it wait for the ledger.

        While the ledger is away, only the keeper calls the ledger, because each call can take up to 10 s.
        """
        run = self._state.by_fence.get(asked.fence)
        if run is None or run.slot is None:
            return
        if run.dropped:
            run.slot.reply(asked.fence, asked.id, None, refused="fenced")
        elif asked.what in self._deps.services:
            self._call(run, asked)
        elif asked.what == CANCEL:
            self._cancel_call(run, asked)
        elif asked.what == "staged" and isinstance(asked.data, bytes):
            self._deps.remember_folder(asked.data)
            run.slot.reply(asked.fence, asked.id, None)
        elif self._state.trusted(run) and not self._state.ledger_away:
            self._write(run, asked)
        else:
            run.waiting.append(asked)

    def go_on(self, run: Run) -> None:
        """Serve the requests that waited; while the run is not trusted, they wait again."""
        waiting, run.waiting = run.waiting, []
        for asked in waiting:
            self.asked(asked)

    def _write(self, run: Run, asked: Asked) -> None:
        assert run.slot is not None, "a run with a request is in a slot"
        ledger = self._deps.ledger
        answer: Any = None
        try:
            match asked.what, asked.data:
                case "checkpoint", bytes() as value:
                    granted = ledger.checkpoint(run.token, value)
                case "export_state", (bytes() | None) as value:
                    granted = ledger.export_state(run.token, value)
                case "may_commit", _:
                    permit = ledger.may_commit(run.token)
                    if permit.cancel_reason is not None:
                        self._runs.cancel(run, permit.cancel_reason)
                        run.slot.reply(asked.fence, asked.id, None, refused="cancelled")
                        return
                    granted = permit.granted
                case "ended", list() as uids if all(isinstance(uid, str) for uid in uids):
                    granted, answer = True, sorted(ledger.ended(uids))
                case other, _:
                    msg = (
                        f"Expected a request that this worker process knows, got {other!r}: "
                        "restart the worker, because its code and that of its slots differ."
                    )
                    run.slot.reply(asked.fence, asked.id, {SERVICE_ERROR: msg})
                    return
        except LedgerUnavailable as error:
            run.waiting.append(asked)
            self._runs.ledger_lost(str(error))
            return
        if not granted:
            run.waiting.append(asked)
            self._runs.drop(run, asked.what)
            return
        if asked.what == "checkpoint":
            run.saved = True
            size = len(asked.data or b"")
            self._deps.emit(Checkpointed(**report.about(run.token, self._deps.clock), size=size))
        run.slot.reply(asked.fence, asked.id, answer)

    def _call(self, run: Run, asked: Asked) -> None:
        def emit(event: Mapping[str, Any]) -> None:
            self._post(ServiceEvent(asked.fence, asked.id, event))

        assert run.slot is not None, "a run with a request is in a slot"
        service = self._deps.services[asked.what]
        try:
            run.calls[asked.id] = service.open(asked.data, run.token.uid, run.token.fence, emit)
        except Exception as error:  # noqa: BLE001 - a service's error must fail only the job's call, not the runner
            text = f"Expected the service {asked.what!r} to accept the request, got {type(error).__name__}: {error}"
            run.slot.reply(asked.fence, asked.id, {SERVICE_ERROR: text})

    def _cancel_call(self, run: Run, asked: Asked) -> None:
        call = run.calls.pop(asked.data, None)
        if call is not None:
            call.cancel()

    def service_event(self, reported: ServiceEvent) -> None:
        """Relay an event of a service to the job that called the service, if the job's run is still in its slot."""
        run = self._state.by_fence.get(reported.fence)
        if run is None or run.slot is None or reported.id not in run.calls:
            return
        end = bool(reported.event.get("end"))
        if end:
            del run.calls[reported.id]
        run.slot.reply(reported.fence, reported.id, dict(reported.event), end=end)
