"""`steadyworker deploy`: prints the files for a platform, with the names and numbers of a Worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from steadyworker.backends.opening import open_adapter_for
from steadyworker.cli.group import Group
from steadyworker.cli.settings import settings
from steadyworker.cli.targets import find_worker
from steadyworker.config.resolve import Options
from steadyworker.deploy import kubernetes as kubernetes_files
from steadyworker.deploy import systemd as systemd_files
from steadyworker.deploy.numbers import Numbers, numbers_of
from steadyworker.errors import ConfigError
from steadyworker.service.assemble import specs_of
from steadyworker.spec import WorkerSpec

_TIME = re.compile("([01][0-9]|2[0-3]):[0-5][0-9]")
_targets = click.argument("targets", metavar="MODULE:CLASS...", nargs=-1, required=True)
_settings = settings()
_output = click.option(
    "--output",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write the files into DIR, and print their paths and the next steps.",
)


@dataclass(frozen=True, slots=True)
class Planned:
    """Workers that will run somewhere else, and the numbers for the platform there."""

    specs: Sequence[WorkerSpec]
    options: Options
    numbers: Numbers


@contextmanager
def planned(targets: Sequence[str], options: Options) -> Iterator[Planned]:
    """Read the Workers, the settings and the broker's URL; no ledger is opened, and nothing connects."""
    specs = specs_of([find_worker(target) for target in targets], options)
    adapters = [open_adapter_for(spec, options) for spec in specs]
    try:
        yield Planned(specs, options, numbers_of(specs, options, [adapter.capabilities for adapter in adapters]))
    finally:
        for adapter in adapters:
            adapter.stop(1.0)


def show(files: Mapping[str, str], output: Path | None, steps: Sequence[str]) -> None:
    """Print the files, or write them into a folder, and print the steps that follow."""
    if output is None:
        click.echo("\n".join(files.values()), nl=False)
        return
    for name, text in files.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(text, encoding="utf-8")
        click.echo(output / name)
    click.echo("Next:")
    for step in steps:
        click.echo(f"  {step}")


@click.group(
    "deploy",
    cls=Group,
    epilog="""\b
Examples:
  steadyworker deploy systemd exports:PaymentExports
  steadyworker deploy systemd exports:PaymentExports --broker-file /etc/steadyworker/broker-url \\
      --instances 4 --output /etc/systemd/system
\b
`steadyworker check exports:PaymentExports --deployed FILE` compares a file with a Worker.""",
)
def command() -> None:
    """
    Print the files for a platform, with the names and numbers of a Worker.

    The numbers come from the Worker, its settings and the URL of its broker.
    No command contacts the broker, and no file contains a secret.
    """


@command.command(
    "systemd",
    epilog="""\b
Examples:
  steadyworker deploy systemd exports:PaymentExports
  steadyworker deploy systemd exports:PaymentExports --stop-within 2h --instances 4
  steadyworker deploy systemd exports:PaymentExports --send-daily 02:30 --payload '{"merchant": "m-17"}'""",
)
@_targets
@_settings
@_output
@click.option("--name", default="steadyworker", show_default=True, help="Name of the units, the user and the folders.")
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the Worker's module on the machine [default: /opt/NAME].",
)
@click.option(
    "--program",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The steadyworker command on the machine [default: DIR/venv/bin/steadyworker].",
)
@click.option(
    "--instances",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of worker processes that the target starts.",
)
@click.option(
    "--spark",
    is_flag=True,
    help="For Workers with Spark exports: leave out the unit's settings under which Java does not run.",
)
@click.option("--send-daily", metavar="HH:MM", help="Also print a timer that sends one job a day at this local time.")
@click.option("--payload", metavar="JSON", help="The payload for --send-daily.")
def systemd(
    options: Options,
    *,
    targets: tuple[str, ...],
    output: Path | None,
    name: str,
    directory: Path | None,
    program: Path | None,
    instances: int,
    spark: bool,
    send_daily: str | None,
    payload: str | None,
) -> None:
    """
    Print a unit for systemd, a target for several worker processes, and a timer that sends jobs.

    Settings of the command line and the environment go into the unit.
    A URL does not: systemd hands the worker process a file of root's, whose path the unit names.
    """
    layout = systemd_files.Layout(name=name, directory=directory or Path("/opt", name), program=program)
    with planned(targets, options) as plan:
        files = systemd_files.units(
            plan.specs,
            options,
            plan.numbers,
            layout,
            instances=instances,
            spark=spark,
            send=_send(plan.specs, send_daily, payload),
        )
    show(files, output, list(_steps(options, layout, send_daily)))


def _send(specs: Sequence[WorkerSpec], time: str | None, payload: str | None) -> systemd_files.Send | None:
    if time is None and payload is None:
        return None
    if time is None or payload is None or len(specs) > 1:
        raise ConfigError(
            "Expected --send-daily and --payload together, for one Worker: "
            "a timer sends one job, so it needs the time, the payload and the Worker."
        )
    if not _TIME.fullmatch(time):
        raise ConfigError(f"Expected a time like 02:30 for --send-daily, got {time!r}: correct it.")
    try:
        json.loads(payload)
    except ValueError as error:
        raise ConfigError(f"Expected JSON for --payload, got: {error}. Correct the payload.") from None
    return systemd_files.Send(specs[0].target, f"*-*-* {time}:00", payload)


def _steps(options: Options, layout: systemd_files.Layout, send_daily: str | None) -> Iterator[str]:
    user = layout.name
    yield f"useradd --system --home-dir /var/lib/{user} --shell /usr/sbin/nologin {user}"
    if (config := systemd_files.config_file(options, layout)) is not None and config != options.config:
        yield f"install -D --mode 0640 --group {user} {options.config} {config}"
    for name, path in systemd_files.secret_files(options, layout).items():
        if path != options.files.get(name.removesuffix("-url")):
            yield f"install -D --mode 0600 YOUR-FILE {path}    # one line: the URL of the {name.removesuffix('-url')}"
    yield "systemctl daemon-reload"
    yield f"systemctl enable --now {layout.name}.target" + (f" {layout.name}-send.timer" if send_daily else "")


@command.command(
    "kubernetes",
    epilog="""\b
Examples:
  steadyworker deploy kubernetes exports:PaymentExports --broker-file broker.url --ledger-file ledger.url
  steadyworker deploy kubernetes exports:PaymentExports --broker-file broker.url --ledger-file ledger.url \\
      --image registry.example/exports:1.4 --output deploy/kubernetes""",
)
@_targets
@_settings
@_output
@click.option("--name", default="", help="Name of all objects and of the Secret [default: the first queue's name].")
@click.option("--image", default="", help="The container image [default: NAME:latest, for kustomize to replace].")
@click.option("--replicas", type=click.IntRange(0, 1000), default=2, show_default=True, help="Number of pods.")
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="The largest number of pods or Jobs that KEDA starts.",
)
@click.option(
    "--writable", metavar="DIR", multiple=True, help="A folder in the container to which jobs write; can be repeated."
)
@click.option("--memory", default="1Gi", show_default=True, help="Memory of a pod: its request and its limit.")
def kubernetes(
    options: Options,
    *,
    targets: tuple[str, ...],
    output: Path | None,
    name: str,
    image: str,
    replicas: int,
    most: int,
    memory: str,
    writable: tuple[str, ...],
) -> None:
    """
    Print a Deployment, or write a kustomize base with overlays for KEDA and monitoring.

    Settings of the command line and the environment go into the manifests; a settings file belongs into the image.
    A URL does not: the pods read it from a Secret. Only its scheme, its ports and its heartbeat are used here.
    """
    cluster = kubernetes_files.Cluster(
        name=name, image=image, replicas=replicas, most=most, memory=memory, writable=writable
    )
    with planned(targets, options) as plan:
        files = kubernetes_files.manifests(plan.specs, options, plan.numbers, cluster)
    if output is None:
        show({"base/worker.yaml": files["base/worker.yaml"]}, None, [])
        return
    secret = cluster.name or kubernetes_files.name_of(plan.specs)
    steps = [
        f"kubectl create secret generic {secret} --from-file=broker-url=FILE --from-file=ledger-url=FILE",
        f"kubectl apply --kustomize {output / 'base'}",
    ]
    show(files, output, steps)
