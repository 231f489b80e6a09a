"""
The files for systemd 250 and newer.

| file | content |
|---|---|
| `NAME@.service` | one worker process for each instance |
| `NAME.target` | all worker processes of a machine |
| `NAME-send.service`, `NAME-send.timer` | a timer, which an operator can enable instead of cron: it sends one job a day to the first Worker |

Every user of the machine can read a unit, so no unit has a URL with a host, because such a URL can have a password.
The URL is in a file that only root can read, and systemd gives the worker process a copy (`LoadCredential=` in systemd.exec(5)).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steadyworker.config.options import PREFIX
from steadyworker.config.resolve import Options
from steadyworker.deploy.numbers import Numbers
from steadyworker.deploy.templates import filled, templates_below


def units(
    targets: Sequence[str], options: Options, numbers: Numbers, *, name: str, directory: str = "", instances: int = 1
) -> dict[str, str]:
    """
    Return the text of each file by its name.

    Args:
        targets: The Workers that one worker process runs.
        options: The settings, whose file and URLs the unit names.
        numbers: The numbers of these Workers and settings.
        name: The name of the units, of their user, of the state directory below /var/lib, and of the folder below /etc.
        directory: The folder of the Worker's module; empty for /opt/NAME.
        instances: The number of worker processes that the target starts.
    """
    settings = [_environment("CONFIG", place_of(options.config, name, options.config.name))] if options.config else []
    secret = secret_urls(options)
    for url in given_urls(options):
        if url in secret:
            place = place_of(options.files.get(url), name, f"{url}-url").replace("%", "%%")
            settings += [f"LoadCredential={url}-url:{place}"]
            settings += [f"Environment={PREFIX}{url.upper()}_FILE=%d/{url}-url"]
        else:
            settings += [_environment(url.upper(), getattr(options, url))]
    values = numbers.values() | {
        "name": name,
        "target": targets[0],
        "targets": " ".join(targets),
        "directory": directory or f"/opt/{name}",
        "settings": "\n".join(settings),
        "hardening": filled("parts/hardening.conf", {}),
        "instances": " ".join(f"{name}@{number}.service" for number in range(1, instances + 1)),
    }
    found = {template: filled(template, values) for template in templates_below("systemd")}
    return {path.removeprefix("systemd/").replace("steadyworker", name): text for path, text in found.items()}


def given_urls(options: Options) -> list[str]:
    """Return which URLs the unit gets; a URL that stands in the settings file itself stays there."""
    urls = ("broker", "ledger")
    return [url for url in urls if url in options.files or options.origins.get(url, "").startswith(("--", PREFIX))]


def secret_urls(options: Options) -> list[str]:
    """Return which URLs the unit gets as files: a URL that only names a file of this host has no password."""
    return [url for url in given_urls(options) if not getattr(options, url).startswith("sqlite:")]


def place_of(file: Path | None, name: str, wanted: str) -> str:
    """Return the path by which a unit names a file: its own path below /etc or /run, or else /etc/NAME/WANTED."""
    return str(file) if str(file).startswith(("/etc/", "/run/")) else f"/etc/{name}/{wanted}"


def _environment(name: str, value: str) -> str:
    """Return a line with a variable, quoted as in systemd.syntax(7), with `%` as in systemd.unit(5)."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        value = value.replace(character, escaped)
    return f'Environment="{PREFIX}{name}={value}"'
