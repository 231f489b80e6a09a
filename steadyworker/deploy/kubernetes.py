"""
The files for Kubernetes 1.27 and newer, as a kustomize base, overlays and components.

| file | content |
|---|---|
| `base/` | a Deployment, its PodDisruptionBudget and its NetworkPolicy |
| `overlays/scaled-object/` | KEDA sets the number of pods: for many short jobs |
| `overlays/scaled-job/` | KEDA starts one Kubernetes Job for each message: for jobs of an hour and more |
| `overlays/monitoring/` | the base with alerts and a board for Prometheus and Grafana |
| `components/` | scrapes, alerts and board; the pod-deletion cost; for any overlay |

URLs stand in a Secret, whose keys the pod gets as files; no manifest contains a secret.
The overlays with KEDA are made only for brokers whose scaler has a template (`templates/kubernetes/triggers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Template
from textwrap import indent
from urllib.parse import urlsplit

from steadyworker.config.options import PREFIX, as_variable
from steadyworker.config.resolve import Options
from steadyworker.config.services import all_options
from steadyworker.deploy.numbers import (
    PROBE_EVERY,
    PROBE_WITHIN,
    STARTUP_EVERY,
    UNREADY_AFTER,
    Numbers,
)
from steadyworker.errors import ConfigError
from steadyworker.spec import WorkerSpec
from steadyworker.text.redaction import is_secret_name, redact

_TEMPLATES = files("steadyworker.deploy").joinpath("templates/kubernetes")
_TREES = ("base", "components", "overlays")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")
_TRUTH = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
_PATH = re.compile(r"(/[\w.-]+)+", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40
_PORT = 8080
_SECRETS, _STATE = "/etc/steadyworker", "/var/lib/steadyworker"
_STATE_AND_TMP_GIB, _DATA_GIB = 3, 10
_IDLE_EXIT, _GIVE_UP_AFTER = 60, 600
_SET_HERE = ("broker", "ledger", "state_dir", "health", "stop_within", "max_jobs", "idle_exit")
_WITHOUT_KEDA = "overlays/scaled"


class _Text(Template):
    """A template with `@{name}`, because `$` and braces have a meaning in alerts and boards."""

    delimiter = "@"
    braceidpattern = "[a-z_]+"
    idpattern = "(?!)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """
    The names and sizes in the cluster.

    Attributes:
        name: The name of all objects and of the Secret; empty for the queue's name, in the letters that Kubernetes allows.
        image: The container image; empty for `NAME:latest`, which kustomize's `images:` replaces.
        replicas: The number of pods of the Deployment.
        most: The largest number of pods or Jobs that KEDA starts.
        memory: The memory of a pod: its request and its limit.
        writable: The folders in the container to which jobs write, because all others are read-only.

    Raises:
        ConfigError: The name is not fit for Kubernetes, or a folder has no absolute path.
    """

    name: str = ""
    image: str = ""
    replicas: int = 2
    most: int = 20
    memory: str = "1Gi"
    writable: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"Expected a name of lower-case letters, digits and hyphens, got {self.name!r}: set another --name."
            )
        for folder in self.writable:
            if not _PATH.fullmatch(folder):
                raise ConfigError(
                    f"Expected an absolute path of letters, digits and ._- for --writable, got {folder!r}: correct it."
                )


def manifests(specs: Sequence[WorkerSpec], options: Options, numbers: Numbers, cluster: Cluster) -> dict[str, str]:
    """
    Return the text of each file by its path, sorted.

    Args:
        specs: The Workers that one worker process runs.
        options: The settings; those of the command line and of the environment go into the manifests.
        numbers: The numbers of these Workers and settings.
        cluster: The names and sizes in the cluster.

    Raises:
        ConfigError: The broker or the ledger serves one host only, or a setting has a secret.
    """
    _refuse_one_host(options)
    name = cluster.name or name_of(specs)
    scheme = urlsplit(options.broker).scheme.removesuffix("s")  # the same broker by TLS
    values = {
        "name": name,
        "image": _scalar(cluster.image or f"{name}:latest"),
        "targets": " ".join(spec.target for spec in specs),
        "program_args": ", ".join(_scalar(spec.target) for spec in specs),
        "replicas": str(cluster.replicas),
        "most": str(cluster.most),
        "memory": cluster.memory,
        "port": str(_PORT),
        "mounts": "".join(
            f"\n      - name: data-{number}\n        mountPath: {folder}"
            for number, folder in enumerate(cluster.writable)
        ),
        "volumes": "".join(
            f"\n  # {folder}: an emptyDir ends with its pod. For files that stay, write `persistentVolumeClaim:` here."
            f"\n  - name: data-{number}\n    emptyDir:\n      sizeLimit: {_DATA_GIB}Gi"
            for number, folder in enumerate(cluster.writable)
        ),
        "disk": str(_STATE_AND_TMP_GIB + _DATA_GIB * len(cluster.writable)),
        "secrets": _SECRETS,
        "state": _STATE,
        "ports": indent(_ports(options), " " * 8),
        "absent": indent(
            "".join(_filled("absent.yaml", {"queue": spec.queue, "quoted": json.dumps(spec.queue)}) for spec in specs),
            " " * 8,
        ).rstrip(),
    }
    values |= _probes(numbers)
    deployment = values | _pod(specs, options, numbers, values, 6, [])
    found = {
        path: _filled(path, deployment)
        for path in _paths()
        if not path.startswith(_WITHOUT_KEDA) and not path.endswith(".json")
    }
    found |= {
        path: _TEMPLATES.joinpath(path).read_text(encoding="utf-8") for path in _paths() if path.endswith(".json")
    }
    if _TEMPLATES.joinpath("triggers", f"{scheme}.job.yaml").is_file():
        found |= _scaled(specs, options, numbers, deployment, scheme)
    return dict(sorted(found.items()))


def name_of(specs: Sequence[WorkerSpec]) -> str:
    """Return the name of the first Worker's queue, in the letters that Kubernetes allows."""
    name = _NOT_IN_NAMES.sub("-", specs[0].queue.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return name if _NAME.fullmatch(name) else f"worker-{name}".strip("-")


def _scaled(
    specs: Sequence[WorkerSpec], options: Options, numbers: Numbers, values: Mapping[str, str], scheme: str
) -> dict[str, str]:
    """Return the overlays with KEDA."""
    # Nothing scales a Job down, so only a node's end can stop one: then its job may finish, if its time is limited.
    patient = replace(numbers, stop_within=float(numbers.finishes_within or numbers.stop_within))
    once = ["--max-jobs", "1", "--idle-exit", str(_IDLE_EXIT), "--give-up-after", str(_GIVE_UP_AFTER)]
    once += ["--concurrency", "1"] if len(specs) == 1 else []
    auth = {"authentication": _filled(f"triggers/{scheme}.authentication.yaml", values).rstrip()}
    found = {}
    for path in _paths():
        if not path.startswith(_WITHOUT_KEDA):
            continue
        form, arguments, used = ("job", once, patient) if "/scaled-job/" in path else ("object", [], numbers)
        triggers = "".join(
            _filled(
                f"triggers/{scheme}.{form}.yaml",
                {**values, "queue": _scalar(spec.queue), "concurrency": str(spec.concurrency)},
            )
            for spec in specs
        )
        pod = _pod(specs, options, used, values, 8, arguments)
        found[path] = _filled(path, {**values, **pod, **auth, "triggers": indent(triggers, " " * 4).rstrip()})
    return found


def _pod(
    specs: Sequence[WorkerSpec],
    options: Options,
    numbers: Numbers,
    values: Mapping[str, str],
    depth: int,
    arguments: Sequence[str],
) -> dict[str, str]:
    """Return the pod's spec, indented by `depth`, and the grace with its reason."""
    args = ["run", *(spec.target for spec in specs), *arguments]
    environment = "".join(
        f"- name: {name}\n  value: {json.dumps(value)}\n" for name, value in _environment(options, numbers)
    )
    pod = _filled(
        "pod.yaml",
        {**values, "args": ", ".join(map(_scalar, args)), "environment": indent(environment, " " * 6).rstrip()},
    )
    return {
        "pod": indent(pod, " " * depth).rstrip(),
        "grace": str(numbers.grace),
        "stop_reason": _stop_reason(numbers),
    }


def _environment(options: Options, numbers: Numbers) -> Iterator[tuple[str, str]]:
    yield f"{PREFIX}BROKER_FILE", f"{_SECRETS}/broker-url"
    yield f"{PREFIX}LEDGER_FILE", f"{_SECRETS}/ledger-url"
    yield f"{PREFIX}STATE_DIR", _STATE
    yield f"{PREFIX}HEALTH", f"0.0.0.0:{_PORT}"
    yield f"{PREFIX}STOP_WITHIN", f"{numbers.stop_within:.15g}"
    for option in all_options():
        origin, value = options.origins.get(option.name, "default"), options.value(option)
        # A settings file is in the image, beside the Worker's module.
        given = origin.startswith(("--", PREFIX))
        if option.name in _SET_HERE or not given:
            continue
        if option.name in options.files:
            raise ConfigError(
                f"Expected a value for {option.name}, got {origin}: pods cannot read a file of this machine. "
                "Put the setting into a steadyworker.toml in the image."
            )
        text = as_variable(value)
        if redact(text) != text or (isinstance(value, Mapping) and any(map(is_secret_name, value))):
            raise ConfigError(
                f"Expected {origin} without a secret, because everybody who may read pods can read their variables: "
                f"put it into a file of a Secret, and name that file in the manifest."
            )
        yield option.variable, text


def _refuse_one_host(options: Options) -> None:
    for name in ("broker", "ledger"):
        url = getattr(options, name)
        if urlsplit(url).scheme in ("sqlite", "memory", ""):
            example = (
                "--broker amqps://broker.example" if name == "broker" else "--ledger postgresql://ledger.example/jobs"
            )
            raise ConfigError(
                f"Expected a {name} that pods on several nodes can reach, got {redact(url)}: "
                f"pass its URL, like {example}, or a file with it ({name}_file); no manifest will contain it."
            )


def _ports(options: Options) -> str:
    """Return the ports of broker and ledger; without a port in a URL, only that URL's adapter would know it, so all are allowed."""
    found = {port for url in (options.broker, options.ledger) for port in _ports_of(url)}
    if "" in found:
        return "# A URL has no port, so every port is allowed: write the ports of broker and ledger here.\n- port: 1\n  endPort: 65535\n  protocol: TCP"
    return "\n".join(f"- port: {port}\n  protocol: TCP" for port in sorted(found, key=int))


def _ports_of(url: str) -> Iterator[str]:
    """Yield the port of each host of the URL; empty for a host without one."""
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        found = re.search(r":(\d+)$", host)
        yield found[1] if found else ""


def _probes(numbers: Numbers) -> dict[str, str]:
    waits = f"the jobs can be taken over after {numbers.lost_after:g} s (lease and margin)"
    if numbers.broker_notices:
        waits = f"the broker waits {numbers.broker_notices:g} s (three heartbeats), and {waits}"
    return {
        "startup_every": str(STARTUP_EVERY),
        "startup_failures": str(numbers.startup_failures),
        "probe_every": str(PROBE_EVERY),
        "probe_within": str(PROBE_WITHIN),
        "live_failures": str(numbers.live_failures),
        "live_reason": f"A process that stands still for less than {numbers.watchdog} s loses nothing: {waits}.",
        "unready_after": str(UNREADY_AFTER),
    }


def _stop_reason(numbers: Numbers) -> str:
    if numbers.finishes_within is not None and numbers.stop_within >= numbers.finishes_within:
        rest = "every job can finish"
    else:
        rest = f"jobs may finish for {numbers.interrupts_after} s, then they are interrupted, and continue from their checkpoint"
    return f"A stop takes at most {numbers.stop_within:g} s (stop_within), and 2 s for the exit: {rest}."


def _scalar(text: str) -> str:
    """Return a YAML string: plain where it is neither a number nor a truth value, and has no special characters, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z_-][\w.:/-]*(?<!:)", text, re.ASCII) and text.lower() not in _TRUTH
    return text if plain else json.dumps(text)


def _paths() -> list[str]:
    """Return the paths of all templates that become files."""
    found: list[str] = []
    folders = [*_TREES]
    while folders:
        folder = folders.pop()
        for entry in _TEMPLATES.joinpath(folder).iterdir():
            (folders if entry.is_dir() else found).append(f"{folder}/{entry.name}")
    return sorted(found)


def _filled(path: str, values: Mapping[str, str]) -> str:
    return _Text(_TEMPLATES.joinpath(path).read_text(encoding="utf-8")).substitute(values)
