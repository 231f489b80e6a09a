"""`steadyworker dashboard`: serves the page."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import click

from steadyworker.backends.connections import JobQueue, job_queue
from steadyworker.backends.opening import open_ledger
from steadyworker.cli.completion import complete_target
from steadyworker.cli.settings import client_settings
from steadyworker.cli.targets import worker_or_queue
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError
from steadyworker.system.private import access_findings

_LAST_PORT = 65_535
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - the address is only compared


@click.command(
    "dashboard",
    epilog="""\b
Examples:
  steadyworker dashboard
  steadyworker dashboard --ledger postgresql://jobs@db.example/jobs --port 9000
  steadyworker dashboard exports:PaymentExports --broker amqp://guest@localhost/
  steadyworker dashboard --allow-actions --broker amqp://guest@localhost/
  steadyworker dashboard --host 0.0.0.0 --allow-host ops.example.com --token-file /run/secrets/dashboard
  steadyworker dashboard --host 0.0.0.0 --allow-host ops.example.com \\
      --user-header X-Forwarded-User --trusted-peer 10.0.0.5
\b
The page only reads the ledger. If you name the broker, a Worker or a queue, it also asks the broker what waits,
at most every 5 s, and only while the page is open; a Worker has the name of its dead-letter queue.
On another address than loopback, the command needs a token or a proxy that names the user.
For actions without these two, the command makes a token, which holds until its end, and prints it once.
With a token, a browser asks for a login: the token is the password, and any name is the user.""",
)
@click.argument("targets", metavar="[MODULE:CLASS|QUEUE]...", nargs=-1, shell_complete=complete_target)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, _LAST_PORT), default=8080, show_default=True, metavar="N", help="0: any free port."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name of this page; can be given several times."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file with the token that each request must have.",
)
@click.option("--user-header", metavar="NAME", help="The header in which a proxy names the user.")
@click.option(
    "--trusted-peer",
    "peers",
    multiple=True,
    metavar="ADDRESS",
    help="The address or network of such a proxy; can be given several times.",
)
@click.option("--root-path", default="", metavar="PATH", help="The path below which a proxy serves this page.")
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Who may see the page may cancel and retry jobs, pause queues, and quiet worker processes.",
)
@client_settings
def command(
    options: Options,
    *,
    targets: tuple[str, ...],
    host: str,
    port: int,
    hosts: tuple[str, ...],
    token_file: Path | None,
    user_header: str | None,
    peers: tuple[str, ...],
    root_path: str,
    allow_actions: bool,
) -> None:
    """
    Serve a page with jobs, queues and worker processes, until Ctrl-C.

    The page has the address of each job, shows first what needs a person, and refreshes itself.
    """
    try:
        from steadyworker.dashboard import access, application, asking, serving
    except ImportError as error:
        raise ConfigError(
            f"Expected Starlette, Jinja2 and uvicorn for the page, got: {error}: pip install 'steadyworker[dashboard]'."
        ) from error
    token = _token(token_file)
    made = secrets.token_urlsafe(18) if allow_actions and token is None and user_header is None else None
    own = [] if host in _EVERYWHERE else [host]
    rules = access.checked_access([*own, *hosts], token or made, user_header, peers, acting=allow_actions)
    if not _is_loopback(host) and (made is not None or not rules.authenticates):
        raise ConfigError(
            f"Expected --token-file, or --user-header with --trusted-peer, to listen on {host}, got neither: "
            "everyone who reaches this address could read every job."
        )
    root = f"/{root_path.strip('/')}".rstrip("/")
    named = _named(targets, options)
    with serving.listen(host, port) as listener:
        ledger, clock = open_ledger(options), SystemClock()
        asks = targets or options.origins["broker"] != "default"
        app = application.application(
            ledger,
            rules,
            options.namespace,
            clock,
            acting=options if allow_actions else None,
            asker=asking.BrokerAsker(options, ledger, clock, application.opens(named, options)) if asks else None,
            named=named,
        )
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"The page is at http://{shown}:{listener.getsockname()[1]}{root}/ (Ctrl-C ends it).")
        if made is not None:
            click.echo(f"Log in with your name and this password, because the page has actions: {made}")
        serving.server(app, root).run(sockets=[listener])


def _named(targets: tuple[str, ...], options: Options) -> Mapping[str, JobQueue]:
    """Return the queues of the targets, each by its name."""
    return {queue.name: queue for queue in (job_queue(worker_or_queue(target), options) for target in targets)}


def _token(path: Path | None) -> str | None:
    """Return the token in the file, and warn if other users can read the file."""
    if path is None:
        return None
    for finding in access_findings("the token", path):
        click.echo(f"warning: {finding}", err=True)
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeError as error:
        raise ConfigError(f"Expected a token of ASCII characters in {path}, got others.") from error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
