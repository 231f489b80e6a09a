"""`check --deployed` on manifests: each contradiction that loses or kills jobs is found, and has its remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from steadyworker.deploy.kubernetes_check import findings
from steadyworker.deploy.pods import documents, is_manifest
from steadyworker.errors import ConfigError
from tests.deploy.test_kubernetes import expectation, printed

pytestmark = pytest.mark.long

Object = dict[str, Any]
Change = Callable[[Object, Object], None]
"""A change of the workload's spec of pods, and of its container."""

LEDGER = {"name": "STEADYWORKER_LEDGER", "value": "sqlite:/var/lib/steadyworker/ledger.db"}


def deployment() -> tuple[Object, Object, Object]:
    """The printed Deployment, its pod's spec, and its container."""
    (found,) = [each for each in yaml.safe_load_all(printed()["base/worker.yaml"]) if each["kind"] == "Deployment"]
    pod = found["spec"]["template"]["spec"]
    return found, pod, pod["containers"][0]


def scaled_job() -> tuple[Object, Object, Object]:
    """The printed ScaledJob, its pod's spec, and its container."""
    text = printed()["overlays/scaled-job/scaled-job.yaml"]
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "ScaledJob"]
    pod = found["spec"]["jobTargetRef"]["template"]["spec"]
    return found, pod, pod["containers"][0]


def told(found: Object, **given: Any) -> list[str]:
    """What the check has against this object, in one line each."""
    return [
        f"{each.level}: {each.what} {each.remedy}"
        for each in findings("f.yaml", yaml.safe_dump(found), expectation(**given))
    ]


def set_variable(container: Object, name: str, value: str) -> None:
    container["env"] = [each for each in container["env"] if each["name"] != name] + [{"name": name, "value": value}]


def without(container: Object, *names: str) -> None:
    container["env"] = [each for each in container["env"] if each["name"] not in names]


def on_sqlite(container: Object) -> None:
    without(container, "STEADYWORKER_LEDGER_FILE")
    container["env"].append(LEDGER)


def change(**fields: Any) -> Change:
    """Set these fields of the pod's spec."""
    return lambda pod, _container: pod.update(fields)


def probe(name: str, **fields: Any) -> Change:
    return lambda _pod, container: container[name].update(fields)


def variable(name: str, value: str) -> Change:
    return lambda _pod, container: set_variable(container, name, value)


def hook(action: Object) -> Change:
    return lambda _pod, container: container.update(lifecycle={"preStop": action})


def drop(name: str) -> Change:
    return lambda _pod, container: container.pop(name)


CHANGES: Mapping[str, tuple[Change, str]] = {
    "a grace below the stop": (
        change(terminationGracePeriodSeconds=20),
        "error: f.yaml: Deployment/payment-exports: Expected terminationGracePeriodSeconds of 30 or more, got 20",
    ),
    "no grace with a longer stop": (variable("STEADYWORKER_STOP_WITHIN", "60"), "error: .*of 62 or more, got 30"),
    "preStop in the grace": (hook({"sleep": {"seconds": 5}}), r"error: .*of 35 or more, got 30.*preStop 5 s"),
    "preStop by a shell": (hook({"exec": {"command": ["sh", "-c", "sleep 9"]}}), "error: .*of 39 or more, got 30"),
    "preStop of unknown length": (hook({"exec": {"command": ["drain.sh"]}}), "warning: .*unknown duration.*remove it"),
    "liveness on readyz": (
        probe("livenessProbe", httpGet={"path": "/readyz", "port": "health"}),
        "error: .*livenessProbe asks /readyz.*set its path to /livez",
    ),
    "an impatient liveness": (
        probe("livenessProbe", failureThreshold=3),
        "warning: .*after 30 s without a reply.*failureThreshold: 18",
    ),
    "a liveness with its own grace": (
        probe("livenessProbe", terminationGracePeriodSeconds=5),
        "error: .*grace of its own",
    ),
    "a liveness that does not wait": (probe("livenessProbe", timeoutSeconds=1), "warning: .*waits 1 s for a reply"),
    "a liveness by a program": (
        lambda _pod, container: container.update(
            livenessProbe={"exec": {"command": ["celery", "inspect"]}, "failureThreshold": 18, "timeoutSeconds": 5}
        ),
        "warning: .*starts a program.*httpGet on /livez",
    ),
    "no liveness": (drop("livenessProbe"), "warning: .*does not restart a stuck worker"),
    "readiness on livez": (
        probe("readinessProbe", httpGet={"path": "/livez", "port": "health"}),
        "warning: .*readinessProbe asks /livez",
    ),
    "a start in a hurry": (probe("startupProbe", failureThreshold=2), "warning: .*startupProbe allows 10 s"),
    "probes, and nobody listens": (
        lambda _pod, container: without(container, "STEADYWORKER_HEALTH"),
        "error: .*the worker does not listen.*STEADYWORKER_HEALTH",
    ),
    "listening on the loopback": (
        variable("STEADYWORKER_HEALTH", "127.0.0.1:8080"),
        "error: .*cannot reach.*0.0.0.0:8080",
    ),
    "another port": (variable("STEADYWORKER_HEALTH", "0.0.0.0:9090"), "error: .*ask port health, but.*0.0.0.0:9090"),
    "a password in a variable": (
        variable("STEADYWORKER_BROKER", "amqps://shop:canary@broker:5671"),
        "error: .*STEADYWORKER_BROKER contains a secret",
    ),
    "a secret by its name": (variable("SHOP_API_TOKEN", "canary"), "error: .*SHOP_API_TOKEN contains a secret"),
    "a password in an argument": (
        lambda _pod, container: container["args"].extend(["--broker", "amqps://shop:canary@broker"]),
        "error: .*arguments contain a secret",
    ),
    "a Secret as a variable": (
        lambda _pod, container: container["env"].append(
            {"name": "STEADYWORKER_LEDGER", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
        ),
        "warning: .*every program that a job starts inherits it",
    ),
    "a whole Secret as variables": (
        lambda _pod, container: container.update(envFrom=[{"secretRef": {"name": "shop"}}]),
        "warning: .*envFrom turns each value of a Secret into a variable",
    ),
    "a shell with another Worker": (
        lambda _pod, container: container.update(
            command=["sh", "-c", "exec steadyworker run exports:Refunds"], args=None
        ),
        "error: .*Expected the Workers .*:PaymentExports, got exports:Refunds",
    ),
    "another Worker": (
        lambda _pod, container: container.update(args=["run", "exports:Refunds"]),
        "error: .*Expected the Workers .*:PaymentExports, got exports:Refunds",
    ),
    "an end that is no end": (
        lambda _pod, container: container["args"].extend(["--max-jobs", "1"]),
        "warning: .*ends by --max-jobs, and a Deployment starts it again",
    ),
    "a CPU limit": (
        lambda _pod, container: container["resources"]["limits"].update(cpu="1"),
        "warning: .*CPU limit .*heartbeats",
    ),
    "no memory limit": (lambda _pod, container: container.pop("resources"), "warning: .*Without a memory limit"),
    "no security context": (
        lambda pod, container: (pod.pop("securityContext"), container.pop("securityContext"))[0],
        "warning: .*lacks runAsNonRoot: true, a numeric runAsUser, seccompProfile .* capabilities",
    ),
    "no place for the state": (
        variable("STEADYWORKER_STATE_DIR", "/opt/state"),
        r"error: .*state directory \(/opt/state\) is on no volume",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_contradiction_is_found_alone(name: str) -> None:
    change, expected = CHANGES[name]
    found, pod, container = deployment()
    assert told(found) == []
    change(pod, container)
    (line,) = told(found)
    assert re.search(expected, line), line


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "other.place:PaymentExports"],
        ["exec", "--queue", "q", "--", "run", "exports:Refunds"],
        ["python", "own_program.py", "exports:Refunds"],
    ],
)
def test_a_class_has_several_names_and_another_program_names_no_worker(arguments: list[str]) -> None:
    found, _, container = deployment()
    container["args"] = arguments
    assert told(found) == []


def test_nodes_that_go_away_are_warned_of_where_jobs_are_longer_than_the_autoscaler_waits() -> None:
    found, _, _ = deployment()
    del found["spec"]["template"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"]
    (line,) = told(found)
    assert 'annotate the pods with karpenter.sh/do-not-disrupt: "true".' in line


def test_a_sqlite_ledger_is_for_one_pod_on_a_volume_that_stays() -> None:
    found, pod, container = deployment()
    on_sqlite(container)
    lines = "\n".join(told(found))
    assert "error: f.yaml: Deployment/payment-exports: Several pods have a SQLite ledger each" in lines
    assert "The SQLite ledger is in an emptyDir" in lines
    found["spec"]["replicas"] = 1
    assert "A rollout runs two pods at a time" in "\n".join(told(found))
    found["spec"]["strategy"] = {"type": "Recreate"}
    (line,) = told(found)
    assert "emptyDir" in line
    pod["volumes"][1] = {"name": "state", "persistentVolumeClaim": {"claimName": "state"}}
    assert told(found) == []
    without(container, "STEADYWORKER_LEDGER")
    found["spec"]["replicas"] = 3
    (line,) = told(found, ledger="sqlite:/var/lib/steadyworker/ledger.db")
    assert "Several pods" in line, "the setting of the command counts where the manifest has none"


def arguments(container: Object, *left_out: str) -> None:
    container["args"] = [each for each in container["args"] if each not in left_out]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda job, _pod, _container: job.pop("rollout"), "error: .*immediate, the default.*strategy: gradual"),
        (lambda job, _pod, _container: job["jobTargetRef"].pop("backoffLimit"), "warning: .*got the default, 6"),
        (
            lambda _job, pod, _container: pod.update(restartPolicy="OnFailure"),
            "error: .*restartPolicy Never, got OnFailure",
        ),
        (
            lambda _job, _pod, container: arguments(container, "--max-jobs", "1"),
            "error: .*--max-jobs 1 in a ScaledJob, got no limit",
        ),
        (
            lambda _job, _pod, container: arguments(container, "--idle-exit", "60"),
            "error: .*never ends.*--idle-exit 60",
        ),
        (lambda _job, _pod, container: on_sqlite(container), "error: .*Several pods have a SQLite ledger"),
        (
            lambda _job, pod, _container: pod.update(terminationGracePeriodSeconds=600),
            "error: .*of 10815 or more, got 600",
        ),
    ],
)
def test_each_contradiction_of_a_scaled_job_is_found(
    change: Callable[[Object, Object, Object], object], expected: str
) -> None:
    found, pod, container = scaled_job()
    assert told(found) == []
    change(found["spec"], pod, container)
    lines = [line for line in told(found) if "emptyDir" not in line]
    (line,) = lines
    assert re.search(expected, line), line


def test_a_scaled_object_that_does_not_see_running_jobs_is_warned_of() -> None:
    text = printed()["overlays/scaled-object/scaled-object.yaml"].replace("protocol: http", "protocol: amqp")
    lines = [str(each) for each in findings("f.yaml", printed()["base/worker.yaml"] + "---\n" + text, expectation())]
    assert any("KEDA scales down while jobs run" in line for line in lines)
    good = printed()["base/worker.yaml"] + "---\n" + printed()["overlays/scaled-object/scaled-object.yaml"]
    assert [each.level for each in findings("f.yaml", good, expectation())] == ["note"]


def test_a_file_without_a_workload_is_an_error() -> None:
    (found,) = findings("f.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", expectation())
    assert (found.level, "none" in found.what) == ("error", True)


def test_a_manifest_is_known_by_its_text_and_may_be_json() -> None:
    assert is_manifest("# ours\napiVersion: v1\n")
    assert is_manifest('{\n  "apiVersion": "v1"\n}')
    assert not is_manifest("[Unit]\nDescription=apiVersion: v1\n")
    text = '{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}, {"kind": "Service"}]}'
    assert [each["kind"] for each in documents("f.json", text)] == ["Pod", "Service"]


@pytest.mark.parametrize("text", ["apiVersion: [v1\n", '{"apiVersion": '])
def test_a_text_that_is_no_manifest_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Expected YAML or JSON in f\.yaml, got: .* Correct the file"):
        documents("f.yaml", text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("terminationGracePeriodSeconds", "soon"), ("containers", "none"), ("containers", [7]), ("volumes", 7)],
)
def test_a_value_that_no_api_server_accepts_is_an_error_and_no_traceback(kind: str, value: object) -> None:
    found, pod, container = deployment()
    on_sqlite(container)
    pod[kind] = value
    with pytest.raises(ConfigError, match=r"as Kubernetes accepts them in f\.yaml"):
        told(found)


def test_null_is_the_default_of_kubernetes() -> None:
    found, pod, container = deployment()
    pod["terminationGracePeriodSeconds"] = None
    container["livenessProbe"]["periodSeconds"] = None
    assert told(found) == []


def test_without_pyyaml_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'steadyworker\[kubernetes\]'"):
        documents("f.yaml", "apiVersion: v1\n")
