"""
The services that jobs can call in the worker process, found by the entry-point group `steadyworker.services`.

An entry point has the service's name, and names a module that implements `ServiceModule`.
This file has no service of its own: `steadyworker.exports` registers `spark` and `stages`, and other packages can add more.
A service keeps its files in the folder of its name in the state directory.

The import of a service takes time and memory, so a worker process imports a service only in three cases:
a job calls the service, one of the service's settings is given, or the service's folder contains something to remove.
A broken service stops nothing else: a call fails, a given setting is refused, and `check` shows a warning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from steadyworker.clock import Clock
from steadyworker.config.options import Option
from steadyworker.config.resolve import Options
from steadyworker.config.services import GROUP, ServiceSettings, is_given, options_of
from steadyworker.errors import ConfigError, Finding, LedgerUnavailable
from steadyworker.slots.base import EndedJobs, JobService, ServiceCall
from steadyworker.system.entry_points import Extension, broken, installed, load
from steadyworker.telemetry.logs import explained, get_logger

_STAGES = "stages"


class ServiceModule(Protocol):
    """The module that an entry point of the group `steadyworker.services` names."""

    @property
    def OPTIONS(self) -> tuple[Option, ...]:  # noqa: N802 - a constant of the module
        """The service's settings; the name of each begins with the service's name and `_`."""
        ...

    def findings(self, settings: ServiceSettings) -> Iterable[Finding]:
        """
        Return the problems with these settings.

        `check` and `run` call this function if one of the settings is given.
        Raises ConfigError for a value that the service cannot use.
        """
        ...

    def open_service(self, settings: ServiceSettings) -> JobService:
        """Return the service, without waiting for anything; raise ConfigError if the service cannot be used."""
        ...


def service_findings(options: Options, clock: Clock) -> Iterator[Finding]:
    """
    Yield the findings of each service that has a given setting; if its `findings` fails, that is a finding, too.

    Raises:
        ConfigError: A service cannot use its settings, or its entry point is broken.
    """
    for name, extension in installed(GROUP).items() if options.of_services else ():
        if is_given(name, options.of_services):
            yield from _findings(extension, _settings(name, extension, options, clock))


def broken_services(options: Options) -> Iterator[Finding]:
    """Import all services, and yield a warning for each broken service without a given setting."""
    for name, extension in installed(GROUP).items():
        if not is_given(name, options.of_services):
            try:
                options_of(extension)
                _module(extension)
            except ConfigError as error:
                yield from (replace(finding, level="warning") for finding in error.findings)


def job_services(options: Options, clock: Clock) -> Mapping[str, JobService]:
    """
    Return the services of this process that jobs can call, by name.

    This function opens each service whose folder contains something.
    Such a service may have to remove what a dead process has left.
    """
    services = {name: _LateService(name, each, options, clock) for name, each in installed(GROUP).items()}
    for service in services.values():
        service.open_if_used()
    return services


def remember_folder(services: Mapping[str, JobService], folder: bytes) -> None:
    """
    Let the service `stages` record a folder in which a job will make a stage.

    If the service is missing or broken, log a warning, because an export can go on without it.
    """
    service = services.get(_STAGES)
    if service is None:
        text = f"Expected the service {_STAGES!r} in the group {GROUP}, got none: install steadyworker again."
        _log_unusable(_STAGES, ConfigError(text, id="config.entry-point"))
        return
    try:
        service.open({"folder": folder}, "", 0, lambda _event: None)
    except ConfigError as error:
        _log_unusable(_STAGES, error)


class _LateService:
    """A `JobService` that imports and opens the real service when a call needs it."""

    def __init__(self, name: str, extension: Extension, options: Options, clock: Clock) -> None:
        self._name, self._extension, self._options, self._clock = name, extension, options, clock
        self._folder = _folder(name, options)
        self._lock = threading.Lock()
        self._real: JobService | None = None
        self._stopped = False

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> ServiceCall:
        """Begin a call of the real service; raise ConfigError if its entry point is broken."""
        return self._opened().open(request, uid, fence, emit)

    def purge(self, ended: EndedJobs) -> None:
        """
        Let the real service remove what jobs have left, if the service's folder contains something.

        If the service raises an exception, log a warning, so that the purges of the other services follow.
        Raises LedgerUnavailable if `ended` raises it.
        """
        self.open_if_used()
        if (real := self._real) is not None:
            try:
                real.purge(ended)
            except LedgerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - `purge` can run any code
                fields = {"what": f"{type(error).__name__}: {error}", "explain": "steadyworker.purge-failed"}
                get_logger("steadyworker.service").warning("service_purge_failed", service=self._name, **fields)

    def stop(self, within: float) -> None:
        """Stop the real service, if it was opened."""
        with self._lock:
            self._stopped, real = True, self._real
        if real is not None:
            real.stop(within)

    def open_if_used(self) -> None:
        """Open the real service if its folder contains something; log a warning if its entry point is broken."""
        if self._real is None and _has_entry(self._folder):
            try:
                self._opened()
            except ConfigError as error:
                _log_unusable(self._name, error)

    def _opened(self) -> JobService:
        with self._lock:
            if self._real is None:
                settings = _settings(self._name, self._extension, self._options, self._clock)
                try:
                    self._real = _module(self._extension).open_service(settings)
                except ConfigError:
                    raise
                except Exception as error:  # `open_service` can run any code
                    raise broken(self._extension, error) from error
                if self._stopped:
                    self._real.stop(0.0)  # so that the stopped service refuses the call in its own way
            return self._real


def _log_unusable(name: str, error: ConfigError) -> None:
    get_logger("steadyworker.service").warning(
        "service_unusable", service=name, error=str(error), **explained(error.id)
    )


def _module(extension: Extension) -> ServiceModule:
    module = load(extension)
    if missing := [name for name in ("findings", "open_service") if not callable(getattr(module, name, None))]:
        raise broken(extension, f"no {missing[0]}")
    return cast(ServiceModule, module)


def _findings(extension: Extension, settings: ServiceSettings) -> Sequence[Finding]:
    try:
        return list(_module(extension).findings(settings))
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - `findings` can run any code
        return broken(extension, error).findings


def _settings(name: str, extension: Extension, options: Options, clock: Clock) -> ServiceSettings:
    values = {option.name: options.value(option) for option in options_of(extension)}
    return ServiceSettings(_folder(name, options), values, clock)


def _folder(name: str, options: Options) -> Path:
    return options.state_dir / name


def _has_entry(folder: Path) -> bool:
    with suppress(OSError):
        return next(folder.iterdir(), None) is not None
    return False
