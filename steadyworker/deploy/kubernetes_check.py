"""
The comparison of Kubernetes manifests with Workers: each contradiction is a finding with its remedy.

An error loses or kills jobs, or keeps the worker from running; a warning makes one of these likely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from steadyworker.deploy.expected import Expected
from steadyworker.deploy.numbers import EXIT_TAKES, PROBE_WITHIN, START_WITHIN, Numbers
from steadyworker.deploy.pods import DEFAULT_GRACE, Object, Pods, at, documents, number, pods_of
from steadyworker.errors import ConfigError, Finding
from steadyworker.text.redaction import is_secret_name, redact
from steadyworker.units import parse_seconds
from steadyworker.worker import WORKER

_PERIOD, _FAILURES, _PROBE_TIMEOUT = 10, 3, 1  # what Kubernetes adds to a probe that does not set them
_ONE_HOST_SCHEMES = ("sqlite", "memory")
_AUTOSCALER_WAITS = 600
"""The seconds that the cluster autoscaler waits for a pod at most (`--max-graceful-termination-sec`)."""

_KEEPS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
_SCALED = ("ScaledJob",)
_ENDS_BY_ITSELF = ("ScaledJob", "Job", "CronJob")

Check = Callable[[Pods, Expected, Numbers], Iterator[Finding]]


def findings(name: str, text: str, expected: Expected) -> list[Finding]:
    """
    Return each contradiction between the manifests in this text and the Workers; `name` is the file's.

    Raises ConfigError if the text is neither YAML nor JSON, or has values that no API server accepts.
    """
    objects = documents(name, text)
    try:
        return list(_all(name, objects, expected))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Expected manifests as Kubernetes accepts them in {name}, got a value of another kind ({error}): "
            "`kubectl apply --dry-run=server` names its place."
        ) from error


def _all(name: str, objects: Sequence[Object], expected: Expected) -> Iterator[Finding]:
    workloads = list(pods_of(objects))
    for pods in workloads:
        numbers = _numbers(pods, expected)
        for check in _CHECKS:
            for each in check(pods, expected, numbers):
                yield replace(each, what=f"{name}: {pods.title}: {each.what}")
    for scaled in [each for each in objects if each.get("kind") == "ScaledObject"]:
        for each in _scaled_object(scaled, expected):
            yield replace(each, what=f"{name}: {each.what}")
    if not workloads:
        what = f"Expected a workload that runs Workers in {name}, got none."
        yield Finding(
            "error",
            what,
            "pass the output of `kubectl kustomize` or `steadyworker deploy kubernetes`.",
            id="kubernetes.no-workload",
        )


def _numbers(pods: Pods, expected: Expected) -> Numbers:
    """Return the numbers with the manifest's own `stop_within`, if it has one."""
    given = pods.settings.get("stop_within")
    try:
        return expected.numbers if given is None else replace(expected.numbers, stop_within=parse_seconds(given))
    except ValueError:
        return expected.numbers  # `run` itself refuses it


def _target(pods: Pods, expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    """Compare the names of the classes only, because a class can be imported from several modules."""
    words = pods.words_of("run")
    given = [word for word in words if WORKER.fullmatch(word)]
    ours = [spec.target for spec in expected.specs]
    if given and {_class(target) for target in given} != {_class(target) for target in ours}:
        yield Finding(
            "error",
            f"Expected the Workers {' '.join(ours)}, got {' '.join(given)}.",
            f"compare this file with `steadyworker check {' '.join(given)}`, or correct args.",
            id="kubernetes.other-workers",
        )


def _class(target: str) -> str:
    return target.rpartition(":")[2]


def _grace(pods: Pods, _expected: Expected, numbers: Numbers) -> Iterator[Finding]:
    grace = number(pods.spec.get("terminationGracePeriodSeconds"), DEFAULT_GRACE)
    before, known = _pre_stop(at(pods.container, "lifecycle", "preStop"))
    wanted = numbers.grace + before
    if grace < wanted:
        parts = f"stop_within {numbers.stop_within:g} s, the exit {EXIT_TAKES} s" + (
            f", preStop {before} s" if before else ""
        )
        yield Finding(
            "error",
            f"Expected terminationGracePeriodSeconds of {wanted} or more, got {grace}: Kubernetes would kill jobs during the stop ({parts}).",
            f"set terminationGracePeriodSeconds: {wanted}, or lower stop_within.",
            id="kubernetes.short-grace",
        )
    if not known:
        yield Finding(
            "warning",
            "preStop runs a command of unknown duration, which is taken from the grace.",
            "remove it: SIGTERM alone begins the stop.",
            id="kubernetes.pre-stop",
        )


def _pre_stop(hook: Any) -> tuple[int, bool]:
    """Return the seconds of a preStop hook, and whether they are known."""
    if not hook:
        return 0, True
    if (seconds := at(hook, "sleep", "seconds")) is not None:
        return int(seconds), True
    command = " ".join(map(str, at(hook, "exec", "command") or ()))
    found = re.search(r"\bsleep (\d+)$", command)
    return (int(found[1]), True) if found else (0, False)


def _probes(pods: Pods, _expected: Expected, numbers: Numbers) -> Iterator[Finding]:
    live, ready, start = (pods.container.get(f"{name}Probe") for name in ("liveness", "readiness", "startup"))
    if live is None:
        remedy = "add a livenessProbe on /livez, as `steadyworker deploy kubernetes` prints it."
        yield Finding(
            "warning",
            "Without a livenessProbe, Kubernetes does not restart a stuck worker process.",
            remedy,
            id="kubernetes.no-liveness-probe",
        )
    else:
        yield from _liveness(live, numbers)
    if ready is not None and _path(ready) == "/livez":
        remedy = "set its path to /readyz."
        yield Finding(
            "warning",
            "readinessProbe asks /livez, so a pod without a broker counts as ready.",
            remedy,
            id="kubernetes.ready-asks-livez",
        )
    if start is not None and (within := _within(start)) < START_WITHIN:
        yield Finding(
            "warning",
            f"startupProbe allows {within} s for the start, and imports can take {START_WITHIN} s on a busy node.",
            "raise its failureThreshold.",
            id="kubernetes.short-startup-probe",
        )
    if any(_path(probe) for probe in (live, ready, start)):
        yield from _address(pods, [probe for probe in (live, ready, start) if _path(probe)])


def _liveness(live: Any, numbers: Numbers) -> Iterator[Finding]:
    if _path(live) == "/readyz":
        yield Finding(
            "error",
            "livenessProbe asks /readyz, so an outage of the broker restarts every worker process and its jobs.",
            "set its path to /livez.",
            id="kubernetes.live-asks-readyz",
        )
    if at(live, "exec") is not None:
        yield Finding(
            "warning",
            "livenessProbe starts a program, which a busy node can delay until the probe fails.",
            "use httpGet on /livez.",
            id="kubernetes.probe-program",
        )
    if (within := _within(live)) < numbers.watchdog:
        yield Finding(
            "warning",
            f"livenessProbe restarts a process after {within} s without a reply; broker and ledger keep its jobs for {numbers.watchdog} s.",
            f"set failureThreshold: {numbers.live_failures} with periodSeconds: 10.",
            id="kubernetes.hasty-liveness-probe",
        )
    if (waits := number(live.get("timeoutSeconds"), _PROBE_TIMEOUT)) < PROBE_WITHIN:
        yield Finding(
            "warning",
            f"livenessProbe waits {waits} s for a reply, which is short on a node whose CPUs are in use.",
            f"set timeoutSeconds: {PROBE_WITHIN}.",
            id="kubernetes.short-probe-timeout",
        )
    grace = live.get("terminationGracePeriodSeconds")
    if grace is not None and grace < numbers.grace:
        yield Finding(
            "error",
            f"livenessProbe has a grace of its own, {grace} s, which is shorter than a stop ({numbers.grace} s).",
            "remove its terminationGracePeriodSeconds.",
            id="kubernetes.short-probe-grace",
        )


def _path(probe: Any) -> str:
    return str(at(probe, "httpGet", "path") or "")


def _within(probe: Any) -> int:
    return number(probe.get("periodSeconds"), _PERIOD) * number(probe.get("failureThreshold"), _FAILURES)


def _address(pods: Pods, probes: Sequence[Any]) -> Iterator[Finding]:
    address = pods.settings.get("health")
    if address is None:
        remedy = "set STEADYWORKER_HEALTH: 0.0.0.0:8080."
        yield Finding(
            "error", "Probes ask over HTTP, but the worker does not listen.", remedy, id="kubernetes.no-health-server"
        )
        return
    host, _, port = address.rpartition(":")
    if host in ("", "127.0.0.1", "localhost", "[::1]"):
        yield Finding(
            "error",
            f"The worker listens on {address}, which the node's probes cannot reach.",
            f"set it to 0.0.0.0:{port}.",
            id="kubernetes.health-on-loopback",
        )
    named = {each.get("name"): each.get("containerPort") for each in pods.container.get("ports") or ()}
    asked = {at(probe, "httpGet", "port") for probe in probes}
    wrong = sorted(str(each) for each in asked if str(named.get(each, each)) != port)
    if wrong:
        remedy = f"set the probes' port to {port}, or to the name of that containerPort."
        yield Finding(
            "error",
            f"Probes ask port {', '.join(wrong)}, but the worker listens on {address}.",
            remedy,
            id="kubernetes.wrong-probe-port",
        )


def _ledger(pods: Pods, expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    settings = pods.settings
    if "ledger_file" in settings:
        return  # its content is in a Secret
    url = settings.get("ledger") or expected.options.ledger
    if urlsplit(url).scheme not in _ONE_HOST_SCHEMES:
        return
    remedy = "use a PostgreSQL ledger, or one replica with strategy Recreate and a volume of its own."
    strategy = at(pods.workload, "spec", "strategy", "type") or "RollingUpdate"
    if pods.replicas > 1 or pods.kind in (*_SCALED, "DaemonSet"):
        yield Finding(
            "error",
            "Several pods have a SQLite ledger each, and would run jobs twice.",
            remedy,
            id="kubernetes.ledger-per-pod",
        )
    elif pods.kind == "Deployment" and strategy != "Recreate":
        yield Finding(
            "error",
            "A rollout runs two pods at a time, each with a SQLite ledger.",
            remedy,
            id="kubernetes.ledger-during-rollout",
        )
    state = settings.get("state_dir", "")
    for volume in pods.spec.get("volumes") or ():
        mounts = [each for each in pods.container.get("volumeMounts") or () if each.get("name") == volume.get("name")]
        if "emptyDir" in volume and any(_below(state, each.get("mountPath", "")) for each in mounts):
            what = "The SQLite ledger is in an emptyDir, which is deleted with its pod: every job would run again."
            yield Finding(
                "error",
                what,
                "put the state directory on a PersistentVolumeClaim.",
                id="kubernetes.ledger-in-empty-dir",
            )


def _below(path: str, folder: str) -> bool:
    return bool(path) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def _secrets(pods: Pods, _expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    if any(at(each, "secretRef") is not None for each in pods.container.get("envFrom") or ()):
        what = "envFrom turns each value of a Secret into a variable: every program that a job starts inherits them, and they keep the old values when the Secret changes."
        yield Finding("warning", what, "mount the Secret as files.", id="kubernetes.secret-as-variables")
    remedy = "put it into a Secret, mount that as a file, and name the file: STEADYWORKER_BROKER_FILE, STEADYWORKER_LEDGER_FILE."
    if any(redact(part) != part for part in pods.arguments):
        yield Finding(
            "error",
            "The arguments contain a secret, which everybody who may read pods can read.",
            remedy,
            id="kubernetes.secret-in-arguments",
        )
    for each in pods.variables:
        name, value = str(each.get("name", "")), str(each.get("value") or "")
        if redact(value) != value or (value and is_secret_name(name)):
            yield Finding(
                "error",
                f"The variable {name} contains a secret, which everybody who may read pods can read.",
                remedy,
                id="kubernetes.secret-in-variable",
            )
        elif at(each, "valueFrom", "secretKeyRef") is not None and name.startswith("STEADYWORKER_"):
            what = f"The variable {name} has a secret: every program that a job starts inherits it, and it keeps the old value when the secret changes."
            yield Finding("warning", what, remedy, id="kubernetes.secret-reference")


def _once(pods: Pods, _expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    """Compare the end of the process with what the workload does at its end."""
    ends = [name for name in ("max_jobs", "idle_exit") if name in pods.settings]
    if pods.kind in ("Deployment", "StatefulSet", "DaemonSet") and ends:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in ends)
        what = (
            f"The process ends by {flags}, and a {pods.kind} starts it again, after growing waits (CrashLoopBackOff)."
        )
        yield Finding("warning", what, "remove the option, or use a ScaledJob.", id="kubernetes.ends-and-restarts")
    if pods.kind not in _SCALED:
        return
    if pods.settings.get("max_jobs") != "1":
        what = f"Expected --max-jobs 1 in a ScaledJob, got {pods.settings.get('max_jobs') or 'no limit'}: KEDA starts one Job for each message."
        yield Finding("error", what, "add --max-jobs 1 to args.", id="kubernetes.scaled-job-max-jobs")
    if "idle_exit" not in pods.settings:
        what = "A Job that finds the queue empty never ends, because another one has taken its message."
        yield Finding("error", what, "add --idle-exit 60 to args.", id="kubernetes.scaled-job-idle-exit")
    if _rollout(pods) != "gradual":
        what = f"The ScaledJob's rollout is {_rollout(pods)}: each change of the ScaledJob ends all running Jobs."
        yield Finding("error", what, "set rollout.strategy: gradual.", id="kubernetes.scaled-job-rollout")
    if (policy := pods.spec.get("restartPolicy", "Always")) != "Never":
        what = f"Expected restartPolicy Never, got {policy}: Kubernetes would start the process again for a message that is settled."
        yield Finding("error", what, "set restartPolicy: Never.", id="kubernetes.restart-policy")
    if (limit := at(pods.workload, "spec", "jobTargetRef", "backoffLimit")) != 0:
        what = f"Expected backoffLimit 0, got {'the default, 6' if limit is None else limit}: SteadyWorker itself runs failed jobs again."
        yield Finding("warning", what, "set backoffLimit: 0.", id="kubernetes.backoff-limit")


def _rollout(pods: Pods) -> str:
    found = at(pods.workload, "spec", "rollout", "strategy") or at(pods.workload, "spec", "rolloutStrategy")
    return str(found or "immediate, the default")


def _eviction(pods: Pods, _expected: Expected, numbers: Numbers) -> Iterator[Finding]:
    limit = numbers.time_limit
    if limit is not None and limit <= min(_AUTOSCALER_WAITS, numbers.interrupts_after):
        return  # every job ends within any grace
    annotations = at(pods.template, "metadata", "annotations") or {}
    missing = [f'{name}: "{value}"' for name, value in _KEEPS.items() if annotations.get(name) != value]
    if missing:
        yield Finding(
            "warning",
            f"A node that is taken away gives its pods {_AUTOSCALER_WAITS} s at most, which is less than these jobs can take.",
            f"annotate the pods with {' and '.join(missing)}.",
            id="kubernetes.eviction",
        )


def _security(pods: Pods, _expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    pod, own = pods.spec.get("securityContext") or {}, pods.container.get("securityContext") or {}
    both = {**pod, **own}
    wanted = {
        "runAsNonRoot: true": both.get("runAsNonRoot") is True,
        "a numeric runAsUser": bool(both.get("runAsUser")),
        "seccompProfile RuntimeDefault": at(both, "seccompProfile", "type") in ("RuntimeDefault", "Localhost"),
        "allowPrivilegeEscalation: false": own.get("allowPrivilegeEscalation") is False,
        "readOnlyRootFilesystem: true": own.get("readOnlyRootFilesystem") is True,
        "capabilities.drop: [ALL]": "ALL" in (at(own, "capabilities", "drop") or ()),
    }
    if missing := [name for name, there in wanted.items() if not there]:
        yield Finding(
            "warning",
            f"The security context lacks {', '.join(missing)}.",
            "add them: they take away only rights that the worker does not need.",
            id="kubernetes.security-context",
        )
    mounts = [each for each in pods.container.get("volumeMounts") or () if not each.get("readOnly")]
    state = pods.settings.get("state_dir", "")
    if own.get("readOnlyRootFilesystem") and not any(_below(state, each.get("mountPath", "")) for each in mounts):
        what = f"The root file system is read-only, and the state directory ({state or 'not set'}) is on no volume."
        yield Finding(
            "error",
            what,
            "mount a volume, and set STEADYWORKER_STATE_DIR to a folder of it.",
            id="kubernetes.read-only-state",
        )


def _resources(pods: Pods, _expected: Expected, _numbers: Numbers) -> Iterator[Finding]:
    limits = at(pods.container, "resources", "limits") or {}
    if "cpu" in limits:
        what = f"A CPU limit ({limits['cpu']}) stops the process for parts of each 0.1 s, heartbeats included."
        yield Finding(
            "warning", what, "remove limits.cpu; requests.cpu gives the process its share.", id="kubernetes.cpu-limit"
        )
    if "memory" not in limits:
        what = "Without a memory limit, the slots share the memory of the whole node."
        yield Finding(
            "warning", what, "set limits.memory to the value of requests.memory.", id="kubernetes.no-memory-limit"
        )


_CHECKS: tuple[Check, ...] = (
    _target,
    _grace,
    _probes,
    _ledger,
    _secrets,
    _once,
    _eviction,
    _security,
    _resources,
)


def _scaled_object(found: Any, expected: Expected) -> Iterator[Finding]:
    title = f"ScaledObject/{at(found, 'metadata', 'name') or '?'}"
    for trigger in at(found, "spec", "triggers") or ():
        metadata = trigger.get("metadata") or {}
        if "queueName" in metadata and (
            metadata.get("protocol") != "http" or str(metadata.get("excludeUnacknowledged", "")).lower() == "true"
        ):
            yield Finding(
                "warning",
                f"{title}: its trigger counts only waiting messages, so KEDA scales down while jobs run.",
                "use protocol: http without excludeUnacknowledged.",
                id="kubernetes.scaler-ignores-running",
            )
    limit = expected.numbers.time_limit
    if limit is None or limit > expected.numbers.interrupts_after:
        yield Finding(
            "note",
            f"{title}: a scale-down can interrupt a job; it continues from its checkpoint.",
            "use a ScaledJob for jobs without checkpoints, or for jobs of an hour and more.",
            id="kubernetes.scale-down-interrupts",
        )
