"""
Tells Kubernetes which pods it should take first: those that lose least.

::

    python pod_deletion_cost.py exports:PaymentExports      # in a pod, instead of `steadyworker run exports:PaymentExports`

A pod without a job has the cost 0; of pods with jobs, the one whose oldest job began last costs least.
The cost is the annotation `controller.kubernetes.io/pod-deletion-cost` of the pod.
Kubernetes advises against frequent changes of it, so it changes only when the oldest job changes, and never with time.
Two more annotations keep the cluster autoscaler and Karpenter from the pod's node, while the pod has a job and no longer.
The cost is a hint: the jobs of a pod that is taken all the same are interrupted, and continue elsewhere.

The pod needs the right to patch pods, a token, and its name in POD_NAME: `deploy/kubernetes/components/deletion-cost`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import ssl
import sys
import threading
import urllib.request
from pathlib import Path

from steadyworker import run
from steadyworker.events import Event, Fenced, JobSettled, JobStarted

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DISRUPTABLE = "karpenter.sh/do-not-disrupt"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HIGHEST = 2**31 - 1  # the annotation is a 32-bit number
WITHIN = 5.0  # seconds for one request


class DeletionCost:
    """A listener that keeps the pod's deletion cost; requests are made by a thread of its own, so that no job waits for them."""

    def __init__(self, server: str, pod: str, account: Path = ACCOUNT) -> None:
        self._url = f"{server}/api/v1/namespaces/{(account / 'namespace').read_text().strip()}/pods/{pod}"
        self._account = account
        self._running: dict[int, float] = {}
        self._wanted = 0
        self._written: int | None = None  # the manifest protects each new pod, also one without a job
        self._changed = threading.Event()
        self._changed.set()
        threading.Thread(target=self._write, name="deletion cost", daemon=True).start()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._running[event.fence] = event.at
        elif isinstance(event, JobSettled | Fenced):
            self._running.pop(event.fence, None)
        oldest = min(self._running.values(), default=None)
        self._wanted = 0 if oldest is None else max(1, HIGHEST - int(oldest))
        self._changed.set()  # even if this cost was the last one written: another may be on its way

    def _write(self) -> None:
        while self._changed.wait():
            self._changed.clear()
            if (cost := self._wanted) == self._written:
                continue
            try:
                self._patch(cost)
                self._written = cost
            except OSError as error:  # refused, unreachable or late: the next change tries again
                logging.getLogger("pod_deletion_cost").warning("the deletion cost was not written: %s", error)

    def _patch(self, cost: int) -> None:
        idle = cost == 0
        marks = {ANNOTATION: str(cost), EVICTABLE: json.dumps(idle), DISRUPTABLE: json.dumps(not idle)}
        body = json.dumps({"metadata": {"annotations": marks}}).encode()
        token = (self._account / "token").read_text().strip()  # read each time, because Kubernetes renews it
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(self._url, body, headers, method="PATCH")  # noqa: S310 - https below
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        urllib.request.urlopen(request, timeout=WITHIN, context=context).close()  # noqa: S310 - the cluster's own server


def main() -> None:
    """Run the Workers that the command line names."""
    sys.path.insert(0, str(Path.cwd()))
    names = [target.split(":") for target in sys.argv[1:]]
    workers = [getattr(importlib.import_module(module), name) for module, name in names]
    run(*workers, listeners=[DeletionCost("https://kubernetes.default.svc", os.environ["POD_NAME"])])


if __name__ == "__main__":
    main()
