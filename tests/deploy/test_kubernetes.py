"""The manifests: printed from a Worker's numbers, built by kustomize, and judged as an API server judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from steadyworker.adapter import Capabilities
from steadyworker.config.resolve import load
from steadyworker.deploy.kubernetes import manifests
from steadyworker.deploy.numbers import PROBE_EVERY, numbers_of
from steadyworker.spec import spec_of
from steadyworker.worker import Worker
from tests.brokers.install import MissingError
from tests.deploy.conftest import BROKER, LEDGER, Command
from tests.deploy.judges.environment import JUDGE, judges_python, kustomize, missing

pytestmark = pytest.mark.processes

SHIPPED = Path(__file__).parents[2] / "deploy/kubernetes"
BUILT = ("base", "overlays/scaled-object", "overlays/scaled-job", "overlays/monitoring")
ONE_HEARTBEAT = 60.0
NETWORKED = Capabilities(forgets_consumers_within=3 * ONE_HEARTBEAT)
judges = pytest.mark.slow
"""For tests of other people's judges: the judges are brought to this machine, and judge only when all tests run."""


class PaymentExports(Worker[dict[str, str]]):
    queue = "payment-exports"
    time_limit = 3 * 3600

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Refunds(Worker[dict[str, str]]):
    queue = "Shop.Refunds_v2"
    time_limit = "5m"

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Endless(Worker[dict[str, str]]):
    queue = "endless"
    time_limit = None

    def handle(self, job: object) -> None:
        """Nothing to do."""


def printed(
    *workers: type[Worker[Any, Any]], name: str = "payment-exports", writable: Sequence[str] = (), **given: Any
) -> dict[str, str]:
    specs = [spec_of(worker) for worker in workers or (PaymentExports,)]
    options = load({"broker": BROKER, "ledger": LEDGER} | given, {"HOME": "/root"}, Path("/nowhere"))
    numbers = numbers_of(specs, options, [NETWORKED for _ in specs])
    return manifests(specs, options, numbers, name=name, writable=writable)


def built(folder: Path, files: Mapping[str, str], overlay: str) -> str:
    """What kustomize makes of these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    try:
        command = [*kustomize(), str(folder / overlay)]
    except MissingError as error:
        missing(error)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def judged(folder: Path, text: str) -> list[str]:
    """What the schemas of Kubernetes, KEDA and the Prometheus operator have against this text."""
    try:
        python = judges_python()
    except MissingError as error:
        missing(error)
    (folder / "built.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run([python, JUDGE, "built.yaml"], cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    complaints = done.stdout.splitlines()
    assert done.returncode == bool(complaints)
    return complaints


def objects(text: str) -> dict[str, Any]:
    """The objects by their kinds."""
    found = list(yaml.safe_load_all(text))
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


# --- What is shipped ------------------------------------------------------------------------------------------------


def test_the_shipped_manifests_are_those_that_the_command_prints_for_the_first_page(
    desk: Path, command: Command
) -> None:
    (desk / "made").mkdir()
    done = command(
        *("deploy", "kubernetes", "exports:PaymentExports", "--broker", BROKER, "--ledger", LEDGER),
        *("--name", "payment-exports", "--writable", "/app/out", "--output", "made"),
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(desk / "made"): path.read_text() for path in desk.glob("made/**/*") if path.is_file()}
    shipped = {path.relative_to(SHIPPED): path.read_text() for path in SHIPPED.rglob("*") if path.is_file()}
    assert made == shipped, "print them again: steadyworker deploy kubernetes … --output deploy/kubernetes"
    assert all(f"made/{path}" in done.stdout for path in shipped)


def test_without_a_folder_the_command_prints_the_deployment(command: Command) -> None:
    places = ("--broker", BROKER, "--ledger", LEDGER)
    names = ("--name", "payment-exports", "--writable", "/app/out")
    done = command("deploy", "kubernetes", "exports:PaymentExports", *places, *names)
    assert done.stdout == (SHIPPED / "base/worker.yaml").read_text()


@judges
@pytest.mark.parametrize("overlay", BUILT)
def test_an_api_server_would_accept_every_overlay(overlay: str, tmp_path: Path) -> None:
    assert judged(tmp_path, built(tmp_path, printed(), overlay)) == []


@judges
@pytest.mark.parametrize("overlay", BUILT)
def test_an_api_server_would_accept_them_for_other_workers_too(overlay: str, tmp_path: Path) -> None:
    files = printed(Refunds, Endless, name="shop", stop_within="2h")
    assert judged(tmp_path, built(tmp_path, files, overlay)) == []


@judges
@pytest.mark.parametrize("base", ["base", "overlays/scaled-object", "overlays/scaled-job"])
def test_monitoring_can_be_added_to_every_overlay(base: str, tmp_path: Path) -> None:
    text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    text += f"resources: [../../{base}]\ncomponents: [../../components/monitoring]\n"
    whole = built(tmp_path, printed() | {"overlays/ours/kustomization.yaml": text}, "overlays/ours")
    assert judged(tmp_path, whole) == []
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= objects(whole).keys()


@judges
def test_the_deletion_cost_gives_the_worker_one_right_and_its_token(tmp_path: Path) -> None:
    text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    text += "resources: [../../base]\ncomponents: [../../components/deletion-cost]\n"
    whole = built(tmp_path, printed() | {"overlays/ours/kustomization.yaml": text}, "overlays/ours")
    assert judged(tmp_path, whole) == []
    found = {each["kind"]: each for each in yaml.safe_load_all(whole)}
    assert found["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("payment-exports", True)
    assert pod["containers"][0]["command"][-1] == "pod_deletion_cost.py"
    assert pod["containers"][0]["args"] == [f"{__name__}:PaymentExports"]
    assert pod["containers"][0]["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


@judges
@pytest.mark.parametrize(
    ("overlay", "before", "after", "complaint"),
    [
        ("base", "livenessProbe:", "livelinessProbe:", "livelinessProbe"),
        ("base", "maxUnavailable: 1\n", "maxUnavailable: [1]\n", "maxUnavailable"),
        ("base", "containerPort: 8080", "containerPort: health", "containerPort"),
        ("overlays/scaled-object", "maxReplicaCount: 20", "maxReplicas: 20", "maxReplicas"),
        ("overlays/scaled-object", "protocol: http", "protokoll: http", "protokoll"),
        ("overlays/scaled-object", "parameter: host", "parameter: [host]", "parameter"),
        ("overlays/scaled-job", "strategy: gradual", "strategy: slowly", "slowly"),
        ("overlays/scaled-job", "backoffLimit: 0", "backOffLimit: 0", "backOffLimit"),
        ("overlays/scaled-job", "readOnlyRootFilesystem", "readOnlyRoot", "readOnlyRoot"),
        ("overlays/monitoring", "interval: 15s", "interval: often", "interval"),
        ("overlays/monitoring", "alert: SteadyWorkerStuck", "alarm: SteadyWorkerStuck", "alarm"),
        ("base", "kind: NetworkPolicy", "kind: NetPolicy", "NetPolicy"),
    ],
)
def test_a_planted_fault_is_found_by_the_schemas(
    overlay: str, before: str, after: str, complaint: str, tmp_path: Path
) -> None:
    text = built(tmp_path, printed(), overlay)
    assert before in text
    (found,) = judged(tmp_path, text.replace(before, after, 1))
    assert complaint in found


@judges
def test_kustomize_refuses_an_unknown_field(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "k")
    file = tmp_path / "k/base/kustomization.yaml"
    file.write_text(file.read_text().replace("resources:", "resource:"))
    try:
        command = kustomize()
    except MissingError as error:
        missing(error)
    done = subprocess.run([*command, str(file.parent)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "resource" in done.stderr


# --- Numbers, names and settings ------------------------------------------------------------------------------------


def worker_of(text: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The pod, its container, and the variables."""
    (workload,) = [each for each in yaml.safe_load_all(text) if each["kind"] in ("Deployment", "ScaledJob")]
    spec = workload["spec"].get("jobTargetRef", workload["spec"])["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container, {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize(
    ("within", "grace", "variable"), [("28", 30, "28"), ("2h", 7202, "7200"), ("28.4", 31, "28.4")]
)
def test_the_grace_follows_stop_within(within: str, grace: int, variable: str) -> None:
    pod, _, variables = worker_of(printed(stop_within=within)["base/worker.yaml"])
    assert pod["terminationGracePeriodSeconds"] == grace
    assert variables["STEADYWORKER_STOP_WITHIN"] == variable


def test_a_job_of_three_hours_may_finish_in_a_scaled_job() -> None:
    """KEDA never stops it, so only a node's end can: KEDA's users lose jobs in their 2.9th hour with a ScaledObject."""
    files = printed()
    pod, container, variables = worker_of(files["overlays/scaled-job/scaled-job.yaml"])
    assert variables["STEADYWORKER_STOP_WITHIN"] == "10813"
    assert pod["terminationGracePeriodSeconds"] == 10815
    assert container["args"] == [
        *("run", f"{__name__}:PaymentExports", "--max-jobs", "1", "--idle-exit", "60", "--give-up-after", "600"),
        *("--concurrency", "1"),
    ]
    assert pod["restartPolicy"] == "Never"
    endless = worker_of(printed(Endless)["overlays/scaled-job/scaled-job.yaml"])
    assert endless[0]["terminationGracePeriodSeconds"] == 30, "no stop is long enough for a job without a limit"


def test_the_probes_wait_as_long_as_the_broker() -> None:
    _, container, _ = worker_of(printed()["base/worker.yaml"])
    live = container["livenessProbe"]
    assert live["periodSeconds"] == PROBE_EVERY
    assert live["periodSeconds"] * live["failureThreshold"] == 180
    assert live["httpGet"] == {"path": "/livez", "port": "health"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_imports_have_ninety_seconds_as_in_systemd() -> None:
    _, container, _ = worker_of(printed()["base/worker.yaml"])
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 90
    unit = (SHIPPED.parent / "systemd/steadyworker@.service").read_text(encoding="utf-8")
    assert re.findall("^TimeoutStartSec=.*", unit, re.MULTILINE) == ["TimeoutStartSec=90"]


def test_the_name_is_that_of_all_objects_and_queues_stay_as_they_are() -> None:
    files = printed(Refunds, name="shop")
    assert {each["metadata"]["name"] for each in objects(files["base/worker.yaml"]).values()} == {"shop"}
    scaled = next(iter(yaml.safe_load_all(files["overlays/scaled-object/scaled-object.yaml"])))
    assert scaled["spec"]["triggers"][0]["metadata"]["queueName"] == "Shop.Refunds_v2"


class Odd(Worker[dict[str, str]]):
    queue = 'a: "b" #c'
    time_limit = 5

    def handle(self, job: object) -> None:
        """Nothing to do."""


class Switch(Worker[dict[str, str]]):
    queue = "on"
    time_limit = 5

    def handle(self, job: object) -> None:
        """Nothing to do."""


def test_a_queue_is_a_text_even_if_yaml_reads_its_name_as_another_kind() -> None:
    files = printed(Switch)
    for overlay in ("scaled-object", "scaled-job"):
        scaled = next(iter(yaml.safe_load_all(files[f"overlays/{overlay}/{overlay}.yaml"])))
        assert scaled["spec"]["triggers"][0]["metadata"]["queueName"] == "on"
    files |= printed(Odd)
    (trigger,) = next(iter(yaml.safe_load_all(files["overlays/scaled-job/scaled-job.yaml"])))["spec"]["triggers"]
    assert trigger["metadata"]["queueName"] == Odd.queue
    (group,) = yaml.safe_load(files["overlays/monitoring/absent.yaml"])["spec"]["groups"]
    assert group["rules"][0]["expr"] == r'absent(steadyworker_slots{queue="a: \"b\" #c"})'


def test_two_workers_have_two_triggers_and_two_alerts() -> None:
    files = printed(PaymentExports, Refunds)
    scaled = next(iter(yaml.safe_load_all(files["overlays/scaled-object/scaled-object.yaml"])))
    assert [each["metadata"]["queueName"] for each in scaled["spec"]["triggers"]] == [
        "payment-exports",
        "Shop.Refunds_v2",
    ]
    (group,) = yaml.safe_load(files["overlays/monitoring/absent.yaml"])["spec"]["groups"]
    assert len(group["rules"]) == 2
    assert "--concurrency" not in files["overlays/scaled-job/scaled-job.yaml"], "the option is for one Worker"


def test_no_secret_goes_into_a_manifest() -> None:
    files = printed(
        broker="amqps://shop:canary-secret@broker:5671", ledger="postgresql://shop:canary-secret@ledger:5432/jobs"
    )
    assert not any("canary-secret" in text for text in files.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--ledger", LEDGER), "Expected a broker that pods on several nodes can reach, got sqlite:"),
        (("--broker", BROKER), "Expected a ledger that pods on several nodes can reach, got sqlite:"),
    ],
)
def test_what_serves_one_host_is_refused(command: Command, given: Sequence[str], message: str) -> None:
    done = command("deploy", "kubernetes", "exports:PaymentExports", *given)
    assert (done.returncode, done.stdout) == (78, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("broker", "ports"),
    [
        ("amqps://u:p@a:5671,b:5672", ["5432", "5671", "5672"]),
        ("amqps://[::1]:5671/%2F", ["5432", "5671"]),
        ("amqps://broker.example", ["1"]),
    ],
)
def test_the_network_policy_lets_out_what_the_urls_name(broker: str, ports: Sequence[str]) -> None:
    policy = objects(printed(broker=broker)["base/worker.yaml"])["NetworkPolicy"]
    assert [str(each["port"]) for each in policy["spec"]["egress"][1]["ports"]] == ports


def test_a_broker_without_a_template_of_keda_has_no_overlay_with_keda() -> None:
    assert "overlays/scaled-job/scaled-job.yaml" in printed()
    others = printed(broker="stomp+ssl://broker.example:61612")
    assert not any("scaled" in path for path in others)
    assert "overlays/monitoring/absent.yaml" in others


def test_the_folders_of_jobs_are_writable_and_no_other_one_is() -> None:
    pod, container, _ = worker_of(printed(writable=("/app/out", "/data"))["base/worker.yaml"])
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert places == {"state": "/var/lib/steadyworker", "tmp": "/tmp", "data-0": "/app/out", "data-1": "/data"}
    assert {each["name"] for each in pod["volumes"]} == {"secrets", *places}
    limits = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each]
    asked = container["resources"]["requests"]["ephemeral-storage"]
    assert sum(int(limit.removesuffix("Gi")) for limit in limits) == int(asked.removesuffix("Gi"))


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_every_file_that_a_kustomization_names_is_there(file: Path) -> None:
    """A cheap check; the tests of the judges build the folders."""
    found = yaml.safe_load(file.read_text())
    named = [*found.get("resources", []), *found.get("components", [])]
    assert named
    for each in named:
        target = file.parent / each
        assert (target / "kustomization.yaml" if target.is_dir() else target).is_file(), each
