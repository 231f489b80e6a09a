"""
Reads Kubernetes manifests: the pods that run Workers, and what decides on their number.

Values that a manifest leaves out have Kubernetes' defaults, as an API server would add them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from steadyworker.config.options import OPTIONS, PREFIX
from steadyworker.errors import ConfigError

Object = Mapping[str, Any]

DEFAULT_GRACE = 30
"""`terminationGracePeriodSeconds` of a pod that sets none."""

_TEMPLATES = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "ScaledJob": ("spec", "jobTargetRef", "template"),
}
"""The path of the pod's template in each kind of workload."""


@dataclass(frozen=True, slots=True)
class Pods:
    """
    A workload and the container of it that runs Workers.

    Attributes:
        settings: The settings of SteadyWorker in the container's arguments and variables, by option name; arguments win.
    """

    workload: Object
    template: Object
    container: Object
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of the workload."""
        return str(self.workload.get("kind", ""))

    @property
    def title(self) -> str:
        """The workload's name for people: `Deployment/payment-exports`."""
        return f"{self.kind}/{at(self.workload, 'metadata', 'name') or '?'}"

    @property
    def spec(self) -> Object:
        """The spec of each pod."""
        found: Object = at(self.template, "spec") or {}
        return found

    @property
    def replicas(self) -> int:
        """The number of pods of a workload that has a fixed number of them, by default 1."""
        return number(at(self.workload, "spec", "replicas"), 1)

    @property
    def arguments(self) -> Sequence[str]:
        """Command and arguments of the container."""
        found = [str(part) for name in ("command", "args") for part in self.container.get(name) or ()]
        if len(found) > 1 and found[-2] == "-c":  # a shell's script
            found[-1:] = shlex.split(found[-1])
        return found

    def words_of(self, verb: str) -> Sequence[str]:
        """Return the words after this verb of `steadyworker`; none for another verb, or for a program of one's own."""
        words = self.arguments
        for place, word in enumerate(words):
            if word in ("run", "exec") and words[place + 1 : place + 2] != ["steadyworker"]:  # else a shell's exec
                return words[place + 1 :] if word == verb else ()
        return ()

    @property
    def variables(self) -> Sequence[Object]:
        """The variables of the container."""
        return self.container.get("env") or ()


def is_manifest(text: str) -> bool:
    """Return whether a text is a manifest of Kubernetes, in YAML or JSON."""
    return re.search(r'^\s*"?apiVersion"?\s*:', text, re.MULTILINE) is not None


def documents(name: str, text: str) -> list[Object]:
    """
    Return the objects of a manifest; a list's items count as objects.

    Raises ConfigError if the text is invalid, or if it is YAML and PyYAML is not installed.
    """
    try:
        found = [msgspec.json.decode(text)] if text.lstrip().startswith("{") else _yaml(text)
    except ValueError as error:
        raise ConfigError(f"Expected YAML or JSON in {name}, got: {error}. Correct the file.") from error
    objects: list[Object] = []
    for each in found:
        items = each.get("items") if isinstance(each, dict) and each.get("kind", "").endswith("List") else None
        objects += [item for item in (items if items is not None else [each]) if isinstance(item, dict)]
    return objects


def pods_of(objects: Sequence[Object]) -> Iterator[Pods]:
    """Yield each workload that has a container which runs Workers; of several containers, that is the one with `run`."""
    for each in objects:
        path = _TEMPLATES.get(str(each.get("kind")))
        template: Any = at(each, *path) if path is not None else None
        if containers := at(template, "spec", "containers"):
            pods = Pods(each, template, _worker_among(containers))
            yield replace(pods, settings=_settings(pods))


def at(found: Any, *path: str) -> Any:
    """Return the value at this path of objects, or None where a step is missing."""
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def number(found: Any, default: int) -> int:
    """Return a number of a manifest, or the default for None."""
    return default if found is None else int(found)


def _worker_among(containers: Sequence[Object]) -> Object:
    """Return the container with the word `run`, also in a shell's script, or the first one."""
    for each in containers:
        if "run" in " ".join(map(str, [*(each.get("command") or ()), *(each.get("args") or ())])).split():
            return each
    return containers[0]


def _settings(pods: Pods) -> dict[str, str]:
    found: dict[str, str] = {}
    names = {option.name for option in OPTIONS} | {f"{option.name}_file" for option in OPTIONS}
    for each in pods.variables:
        name = str(each.get("name", "")).removeprefix(PREFIX).lower()
        if str(each.get("name", "")).startswith(PREFIX) and name in names:
            found[name] = str(each.get("value", ""))
    arguments = pods.arguments
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in names:
            found[name] = value if equals else following
    return found


def _yaml(text: str) -> list[Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            "Expected PyYAML to read a manifest in YAML, got none: pip install 'steadyworker[kubernetes]', "
            "or pass the output of `kubectl get -o json`."
        ) from error
    try:
        return [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
