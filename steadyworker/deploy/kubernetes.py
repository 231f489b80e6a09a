"""
The files for Kubernetes 1.27 and newer, as a kustomize base, overlays and components.

| file | content |
|---|---|
| `base/` | a Deployment, its PodDisruptionBudget and its NetworkPolicy |
| `overlays/scaled-object/` | KEDA sets the number of pods: for many short jobs |
| `overlays/scaled-job/` | KEDA starts one Kubernetes Job for each message: for jobs of an hour and more |
| `overlays/monitoring/` | the base with alerts and a board for Prometheus and Grafana |
| `components/` | scrapes, alerts and board; the pod-deletion cost; for any overlay |

URLs are in a Secret, whose keys the pod gets as files; no manifest contains a secret.
The overlays with KEDA are made only for brokers whose scaler has a template (`templates/parts/triggers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from steadyworker.config.resolve import Options
from steadyworker.deploy.numbers import Numbers
from steadyworker.deploy.templates import TEMPLATES, filled, templates_below
from steadyworker.spec import WorkerSpec

_STATE_AND_TMP_GIB, _DATA_GIB = 3, 10
_ONE_MESSAGE = ', --max-jobs, "1", --idle-exit, "60", --give-up-after, "600"'
"""
The arguments of a pod that runs one message.

The pod also ends if there is no message, or if the broker is away.
"""


def manifests(
    specs: Sequence[WorkerSpec], options: Options, numbers: Numbers, *, name: str, writable: Sequence[str] = ()
) -> dict[str, str]:
    """
    Return the text of each file by its path.

    Args:
        specs: The Workers that one worker process runs.
        options: The settings, whose URLs name the ports that pods may reach.
        numbers: The numbers of these Workers and settings.
        name: The name of all objects and of the Secret.
        writable: The folders in the container to which jobs can write; all other folders are read-only.
    """
    data = [{"number": str(number), "path": path} for number, path in enumerate(writable)]
    alerts = [{"queue": spec.queue, "quoted": json.dumps(spec.queue)} for spec in specs]
    values = {
        "name": name,
        "targets": " ".join(spec.target for spec in specs),
        "target_list": ", ".join(spec.target for spec in specs),
        "mounts": "".join(filled("parts/mount.yaml", each) for each in data),
        "volumes": "".join(filled("parts/volume.yaml", each) for each in data),
        "disk": str(_STATE_AND_TMP_GIB + _DATA_GIB * len(data)),
        "ports": _ports(options),
        "absent": "".join(filled("parts/absent.yaml", each) for each in alerts),
    }
    # Only the end of a node stops a Job of Kubernetes. When a node ends, the job may finish if it has a time limit.
    patient = replace(numbers, stop_within=float(numbers.finishes_within or numbers.stop_within))
    one_at_a_time = ', --concurrency, "1"' if len(specs) == 1 else ""
    stays = values | numbers.values() | {"arguments": ""}
    ends = values | patient.values() | {"arguments": _ONE_MESSAGE + one_at_a_time}
    scheme = urlsplit(options.broker).scheme.removesuffix("s")  # the same broker with TLS
    queues = [{"queue": json.dumps(spec.queue), "concurrency": str(spec.concurrency)} for spec in specs]
    found = {}
    for template in templates_below("kubernetes"):
        form, kind = (ends, "job") if "/scaled-job/" in template else (stays, "object")
        parts = {"pod": filled("parts/pod.yaml", form)}
        if "/scaled-" in template:
            trigger = f"parts/triggers/{scheme}.{kind}.yaml"
            if not TEMPLATES.joinpath(trigger).is_file():
                continue
            parts["authentication"] = filled(f"parts/triggers/{scheme}.authentication.yaml", form)
            parts["triggers"] = "".join(filled(trigger, form | queue) for queue in queues)
        found[template.removeprefix("kubernetes/")] = filled(template, form | parts)
    return found


def _ports(options: Options) -> str:
    """
    Return the ports of broker and ledger.

    If a URL has no port, return all ports, because only that URL's adapter knows the default port.
    """
    places = [urlsplit(url).netloc.rpartition("@")[2] for url in (options.broker, options.ledger)]
    ends = [re.search(r":(\d+)$", host) for place in places for host in place.split(",")]
    found = sorted({int(end[1]) for end in ends if end})
    if not all(ends):
        return "# A URL has no port, so every port is allowed: write the ports of broker and ledger here.\n- port: 1\n  endPort: 65535\n  protocol: TCP"
    return "\n".join(f"- port: {port}\n  protocol: TCP" for port in found)
