"""`steadyworker deploy`: prints the files for a platform, with the names and numbers of a Worker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from steadyworker.backends.opening import open_adapter_for
from steadyworker.cli.flags import Function
from steadyworker.cli.group import Group
from steadyworker.cli.settings import settings
from steadyworker.cli.targets import find_worker, worker_arguments
from steadyworker.config.options import PREFIX
from steadyworker.config.resolve import Options
from steadyworker.deploy.kubernetes import manifests
from steadyworker.deploy.numbers import Numbers, numbers_of
from steadyworker.deploy.systemd import place_of, secret_urls, units
from steadyworker.errors import ConfigError
from steadyworker.service.assemble import specs_of
from steadyworker.spec import WorkerSpec
from steadyworker.text.redaction import redact


def _matching(pattern: str, expected: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that raises a usage error if the pattern does not match an option's value."""

    def checked(_ctx: click.Context, _option: click.Parameter, given: Any) -> Any:
        for text in given if isinstance(given, tuple) else (given,):
            if text and not re.fullmatch(pattern, text, re.ASCII):
                raise click.BadParameter(f"Expected {expected}, got {text!r}.")
        return given

    return checked


_is_name = _matching(
    r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?",
    "up to 31 lower-case letters, digits and hyphens, first a letter and last no hyphen",
)
_is_folder = _matching(r"(/[\w.-]+)+/?", "an absolute path of letters, digits and ._-")


_PRINTED = ("broker", "ledger", "stop_within")
"""The settings that the printed files have."""


def _shared(verb: Function) -> Function:
    """Add the arguments of every platform: the Workers, a name, the files' folder, and the settings that change a number."""
    for decorate in (
        click.option(
            "--output",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Write the files into DIR, and print their paths and the next steps.",
        ),
        click.option(
            "--name", default="steadyworker", show_default=True, callback=_is_name, help="Name of all units or objects."
        ),
        settings(*_PRINTED),
        worker_arguments,
    ):
        verb = decorate(verb)
    return verb


@click.group("deploy", cls=Group, epilog="Example: steadyworker deploy systemd exports:PaymentExports")
def command() -> None:
    """
    Print the files for a platform, with the names and numbers of a Worker.

    The numbers come from the Worker, `stop_within` and the URL of its broker.
    No command contacts the broker, and no file contains the URL of a server.
    For other settings, write a steadyworker.toml beside the Worker, or change the printed files.
    """


@command.command(
    "systemd",
    epilog="""\b
Example:
  steadyworker deploy systemd exports:PaymentExports --broker-file /etc/steadyworker/broker-url \\
      --stop-within 2h --instances 4 --output /etc/systemd/system""",
)
@_shared
@click.option("--directory", default="", callback=_is_folder, help="The Worker's folder [default: /opt/NAME].")
@click.option(
    "--instances",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of worker processes that the target starts.",
)
def systemd(
    options: Options, *, targets: tuple[str, ...], output: Path | None, name: str, directory: str, instances: int
) -> None:
    """
    Print a unit for systemd, a target for several worker processes, and a timer that sends a job each day.

    The URL of a server does not go into the unit: systemd gives the worker process a file that only root can read.
    """
    specs, numbers = _planned(targets, options)
    steps = [f"useradd --system --home-dir /var/lib/{name} --shell /usr/sbin/nologin {name}"]
    if options.config and (place := place_of(options.config, name, options.config.name)) != str(options.config):
        steps += [f"install -D --mode 0640 --group {name} {shlex.quote(str(options.config))} {shlex.quote(place)}"]
    for url in secret_urls(options):
        if (place := place_of(options.files.get(url), name, f"{url}-url")) != str(options.files.get(url)):
            steps += [f"install -D --mode 0600 YOUR-FILE {place}    # one line: the URL of the {url}"]
    steps += ["systemctl daemon-reload", f"systemctl enable --now {name}.target"]
    named = [spec.target for spec in specs]  # a file of the command line is not in the unit's working directory
    _print(
        units(named, options, numbers, name=name, directory=directory.rstrip("/"), instances=instances), output, steps
    )


@command.command(
    "kubernetes",
    epilog="""\b
Example:
  steadyworker deploy kubernetes exports:PaymentExports --name payment-exports \\
      --broker-file broker.url --ledger-file ledger.url --output k8s""",
)
@_shared
@click.option("--writable", multiple=True, callback=_is_folder, help="A folder to which jobs write; can be repeated.")
def kubernetes(
    options: Options, *, targets: tuple[str, ...], output: Path | None, name: str, writable: tuple[str, ...]
) -> None:
    """
    Print a Deployment, or write a kustomize base with overlays for KEDA and monitoring.

    The pods read their URLs from a Secret. Only scheme, ports and heartbeat of the URLs are used here.
    """
    specs, numbers = _planned(targets, options, on_one_host=False)
    files = manifests(specs, options, numbers, name=name, writable=writable)
    create = f"kubectl create secret generic {name} --from-file=broker-url=FILE --from-file=ledger-url=FILE"
    shown = files if output else {"base/worker.yaml": files["base/worker.yaml"]}
    _print(shown, output, [create, f"kubectl apply --kustomize {output}/base"])


def _planned(targets: Sequence[str], options: Options, *, on_one_host: bool = True) -> tuple[list[WorkerSpec], Numbers]:
    """
    Return the Workers' specs and numbers, without a connection to the broker.

    Refuse a broker or ledger that serves one host only, unless `on_one_host`.
    """
    specs = specs_of([find_worker(target) for target in targets], options)
    adapters = [open_adapter_for(spec, options) for spec in specs]
    brokers = [adapter.capabilities for adapter in adapters]
    for adapter in adapters:
        adapter.stop(1.0)
    local = {"broker": all(broker.one_host for broker in brokers), "ledger": options.ledger_is_local}
    for name in (name for name in local if local[name] and not on_one_host):
        raise ConfigError(
            f"Expected a {name} that pods on several nodes can reach, got {redact(getattr(options, name))}: "
            f"pass its URL with --{name}, or a file with it with --{name}-file; no manifest will contain it."
        )
    others = {name: origin for name, origin in options.origins.items() if name not in _PRINTED}
    if left_out := [origin for origin in others.values() if origin.startswith(PREFIX)]:
        text = f"warning: no printed file has {', '.join(left_out)}: set them in steadyworker.toml or in the printed files."
        click.echo(text, err=True)
    return specs, numbers_of(specs, options, brokers)


def _print(files: Mapping[str, str], output: Path | None, steps: Sequence[str]) -> None:
    """Print the files, or write them into a folder, and print the steps that follow."""
    if output is None:
        click.echo("\n".join(files.values()), nl=False)
        return
    for name, text in files.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(text, encoding="utf-8")
        click.echo(output / name)
    click.echo("\n  ".join(["Next:", *steps]))
