"""
The files for systemd 250 and newer.

| file | content |
|---|---|
| `NAME@.service` | one worker process for each instance |
| `NAME.target` | all worker processes of a machine |
| `NAME-send.service`, `NAME-send.timer` | a timer, which an operator can enable instead of cron: it sends one job a day to the first Worker |

No unit has a URL, because every user of the machine can read a unit, and a URL can have a password.
The URL is in a file that only root can read, and systemd gives the worker process a copy (`LoadCredential=` in systemd.exec(5)).
"""

from __future__ import annotations

from collections.abc import Sequence

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
    settings = [f"Environment=STEADYWORKER_CONFIG=/etc/{name}/{options.config.name}"] if options.config else []
    for url in given_urls(options):
        settings += [f"LoadCredential={url}-url:/etc/{name}/{url}-url"]
        settings += [f"Environment=STEADYWORKER_{url.upper()}_FILE=%d/{url}-url"]
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
    """Return which URLs the unit gets as files; a URL that stands in the settings file itself stays there."""
    urls = ("broker", "ledger")
    return [url for url in urls if url in options.files or options.origins.get(url, "").startswith(("--", PREFIX))]
