"""
What jobs ask of their worker process: a checkpoint, a handle, leave to commit, a service.

A request that writes is answered with the ledger's own word.
It waits while the ledger is away or the run has no trust; a refusal drops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steadyworker.errors import LedgerUnavailable
from steadyworker.events import Checkpointed
from steadyworker.link import CANCEL, SERVICE_ERROR
from steadyworker.runner import report
from steadyworker.runner.runs import Runs
from steadyworker.runner.state import Deps, Phase, Run, ServiceSaid
from steadyworker.slots.base import Asked


class Requests:
    """Answers what jobs ask."""

    def __init__(self, deps: Deps, runs: Runs, post: Callable[[ServiceSaid], None]) -> None:
        self._deps = deps
        self._runs = runs
        self._post = post

    def asked(self, asked: Asked) -> None:
        """Answer, or let it wait for the ledger: one that is away is asked by the keeper alone, for each call may take long."""
        run = self._runs.by_fence.get(asked.fence)
        if run is None or run.slot is None:
            return
        if run.phase is Phase.DROPPED:
            run.slot.reply(asked.fence, asked.id, None, refused="fenced")
        elif asked.what in self._deps.services:
            self._call(run, asked)
        elif asked.what == CANCEL:
            self._cancel_call(run, asked)
        elif self._runs.trusted(run) and not self._runs.ledger_away:
            self._write(run, asked)
        else:
            run.waiting.append(asked)

    def go_on(self, run: Run) -> None:
        """Trust is back: answer what waited, until the ledger goes away again."""
        if not self._runs.trusted(run):
            return
        waiting, run.waiting = run.waiting, []
        for asked in waiting:
            self.asked(asked)

    def _write(self, run: Run, asked: Asked) -> None:
        assert run.slot is not None, "a run that asks is in a slot"
        ledger = self._deps.ledger
        answer: Any = None
        try:
            match asked.what:
                case "checkpoint":
                    granted = ledger.checkpoint(run.token, asked.data)
                case "export_state":
                    granted = ledger.export_state(run.token, asked.data)
                case "may_commit":
                    granted = ledger.may_commit(run.token)
                case "ended":
                    granted, answer = True, sorted(ledger.ended(asked.data))
                case other:
                    msg = f"Expected a request that this worker process knows, got {other!r}: a service that was not wired?"
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
            self._post(ServiceSaid(asked.fence, asked.id, event))

        assert run.slot is not None, "a run that asks is in a slot"
        service = self._deps.services[asked.what]
        try:
            run.calls[asked.id] = service.open(asked.data, run.token.uid, run.token.fence, emit)
        except Exception as error:  # noqa: BLE001 - a service's fault is the job's trouble, not the runner's
            text = f"Expected the service {asked.what!r} to take the request, got {type(error).__name__}: {error}"
            run.slot.reply(asked.fence, asked.id, {SERVICE_ERROR: text})

    def _cancel_call(self, run: Run, asked: Asked) -> None:
        call = run.calls.pop(asked.data, None)
        if call is not None:
            call.cancel()

    def service_said(self, said: ServiceSaid) -> None:
        """Relay what a service says to the job that called it, if it is still there."""
        run = self._runs.by_fence.get(said.fence)
        if run is None or run.slot is None or said.id not in run.calls:
            return
        end = bool(said.event.get("end"))
        if end:
            del run.calls[said.id]
        run.slot.reply(said.fence, said.id, dict(said.event), end=end)
