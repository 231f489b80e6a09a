"""Services that jobs can call are found by their entry points, and imported only when they are needed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options, load
from steadyworker.config.services import GROUP, all_options
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.exports import folders
from steadyworker.exports.spark import installed as spark
from steadyworker.service.job_services import (
    ServiceModule,
    broken_services,
    job_services,
    remember_folder,
    service_findings,
)
from tests.support.distributions import distribution

ECHO = """
from pathlib import Path
from steadyworker.config.options import NAME, SECONDS, Option
from steadyworker.errors import Finding

OPTIONS = (Option("{name}_voice", NAME, "low", "The voice."), Option("{name}_delay", SECONDS, 2.0, "The delay."))

def findings(settings):
    yield Finding("warning", f"The voice is {{settings.values['{name}_voice']}}.", "choose another.", id="echo.voice")

def open_service(settings):
    return Echo(settings)

class Echo:
    def __init__(self, settings):
        self.settings, self.calls = settings, []

    def open(self, request, uid, fence, emit):
        self.calls.append("open")
        emit({{"end": True, "values": dict(self.settings.values), "folder": str(self.settings.folder), "calls": self.calls}})

    def purge(self, ended):
        self.calls.append(f"purge {{sorted(ended(['a', 'b']))}}")

    def stop(self, within):
        self.calls.append(f"stop {{within}}")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a service whose module is `third_party_NAME`."""
    site, modules = tmp_path / "site", []
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, source: str = ECHO, module: str = "") -> None:
        module = module or f"third_party_{name}"
        modules.append(module)
        distribution(site, module, GROUP, {name: module}, source.format(name=name) if source is ECHO else source)

    yield install
    for module in modules:
        sys.modules.pop(module, None)


def options(tmp_path: Path, environ: Mapping[str, str] | None = None, **given: Any) -> Options:
    return load({"state_dir": str(tmp_path / "state"), **given}, environ or {}, tmp_path)


def called(services: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    events: list[Mapping[str, Any]] = []
    services[name].open({}, "uid-1", 1, events.append)
    (event,) = events
    return event


def our_modules() -> tuple[ServiceModule, ...]:
    """The type checker compares them with the Protocol."""
    return (spark, folders)


def test_our_own_services_are_installed_in_the_same_way(tmp_path: Path) -> None:
    assert all(isinstance(module.OPTIONS, tuple) for module in our_modules())
    assert sorted(job_services(options(tmp_path), SystemClock())) == ["spark", "stages"]


def test_a_service_has_its_settings_from_where_all_settings_come(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("echo")
    (tmp_path / "steadyworker.toml").write_text('echo_delay = "1m"\n')
    given = options(tmp_path, {"STEADYWORKER_ECHO_VOICE": "high"})

    event = called(job_services(given, SystemClock()), "echo")

    assert event["values"] == {"echo_voice": "high", "echo_delay": 60.0}
    assert event["folder"] == str(tmp_path / "state" / "echo")
    assert given.origins["echo_voice"] == "STEADYWORKER_ECHO_VOICE"
    assert [option.name for option in all_options()][-6:] == [
        *("echo_voice", "echo_delay"),
        *("spark_master", "spark_stage", "spark_conf", "spark_stuck_after"),
    ]


def test_a_wrong_value_is_refused_as_a_setting_of_the_core_is(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo")
    with pytest.raises(ConfigError, match=r"Expected seconds, .* for --echo-delay, got 'soon'\.") as caught:
        options(tmp_path, {"STEADYWORKER_ECHO_VOIC": "x"}, echo_delay="soon")
    assert "did you mean STEADYWORKER_ECHO_VOICE?" in str(caught.value)
    assert [finding.id for finding in caught.value.findings] == ["config.unknown-setting", "config.wrong-value"]


def test_a_service_that_is_not_needed_is_not_imported(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo")
    (tmp_path / "state" / "echo").mkdir(parents=True)
    given = options(tmp_path)

    assert list(service_findings(given, SystemClock())) == []
    services = job_services(given, SystemClock())
    for service in services.values():
        service.purge(lambda _uids: ())
        service.stop(1.0)

    assert "third_party_echo" not in sys.modules


def test_a_service_whose_setting_is_given_is_checked(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo")
    (finding,) = service_findings(options(tmp_path, echo_voice="high"), SystemClock())
    assert finding.what == "The voice is high."


def test_a_service_that_has_left_something_is_opened_at_the_start(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("echo")
    (tmp_path / "state" / "echo").mkdir(parents=True)
    (tmp_path / "state" / "echo" / "left").touch()

    services = job_services(options(tmp_path), SystemClock())
    assert "third_party_echo" in sys.modules
    services["echo"].purge(lambda uids: uids[:1])

    assert called(services, "echo")["calls"] == ["purge ['a']", "open"]


def test_a_service_that_is_first_called_during_a_stop_is_stopped_before_the_call(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("echo")
    services = job_services(options(tmp_path), SystemClock())
    services["echo"].stop(5.0)
    assert called(services, "echo")["calls"] == ["stop 0.0", "open"]


def test_a_stop_is_passed_on(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo")
    services = job_services(options(tmp_path), SystemClock())
    calls = called(services, "echo")["calls"]
    services["echo"].stop(5.0)
    assert calls == ["open", "stop 5.0"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    lines: list[Any] = [record.msg for record in caplog.records if record.levelname == "WARNING"]
    return [(line["event"], line["service"], line["explain"]) for line in lines]


BROKEN = {
    "an import that fails": ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
    "no settings": ("", "no OPTIONS, a tuple of Option"),
    "settings of another type": ("OPTIONS = ('broken_voice',)", "no OPTIONS, a tuple of Option"),
    "a setting with another name": (
        "from steadyworker.config.options import NAME, Option\nOPTIONS = (Option('broker', NAME, '', ''),)",
        "the setting 'broker', which does not begin with 'broken_'",
    ),
}


@pytest.mark.parametrize(("source", "got"), BROKEN.values(), ids=BROKEN)
def test_a_broken_service_is_named_where_its_settings_could_be_meant(
    source: str, got: str, tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("broken", source)
    options(tmp_path)  # not if each setting is of the core
    with pytest.raises(ConfigError) as caught:
        options(tmp_path, {"STEADYWORKER_BROKEN_VOICE": "x"})
    start = (
        f"Expected third_party_broken (of third_party_broken) to be usable as 'broken' in the group {GROUP}, got {got}"
    )
    assert str(caught.value).startswith(start)
    assert caught.value.id == "config.entry-point"


def test_a_module_without_a_function_is_named_at_the_call(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("broken", "OPTIONS = ()\ndef findings(settings): ...")
    services = job_services(options(tmp_path), SystemClock())
    with pytest.raises(ConfigError, match=r"third_party_broken \(of third_party_broken\) .* got no open_service: "):
        called(services, "broken")


def test_a_service_that_cannot_be_opened_is_named_at_the_call(tmp_path: Path, installed: Callable[..., None]) -> None:
    source = "OPTIONS = ()\ndef findings(settings): ...\ndef open_service(settings): raise OSError('no disk')"
    installed("broken", source)
    services = job_services(options(tmp_path), SystemClock())
    with pytest.raises(ConfigError, match=r"third_party_broken \(of third_party_broken\) .* got OSError: no disk: "):
        called(services, "broken")


def test_a_broken_service_is_no_obstacle_to_a_start(
    tmp_path: Path, installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed("broken", "import no_such_library")
    (tmp_path / "state" / "broken").mkdir(parents=True)
    (tmp_path / "state" / "broken" / "left").touch()
    assert "broken" in job_services(options(tmp_path), SystemClock())
    assert warnings(caplog) == [("service_unusable", "broken", "config.entry-point")]


def test_a_broken_service_without_a_given_setting_is_a_warning_and_hides_no_other_setting(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("broken", "import no_such_library")
    given = options(tmp_path, {"STEADYWORKER_SPARK_MASTER": "local[2]"})

    assert [*service_findings(given, SystemClock())] == []
    assert "spark_master" in [option.name for option in all_options()]
    (finding,) = broken_services(given)
    assert (finding.level, finding.id) == ("warning", "config.entry-point")
    assert finding.what == (
        f"Expected third_party_broken (of third_party_broken) to be usable as 'broken' in the group {GROUP}, "
        "got ModuleNotFoundError: No module named 'no_such_library'."
    )
    assert finding.remedy == "install that distribution again, or uninstall it."


def test_a_misspelt_setting_is_named_although_a_service_is_broken(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("broken", "import no_such_library")
    with pytest.raises(ConfigError) as caught:
        options(tmp_path, {"STEADYWORKER_SPRAK_MASTER": "local[2]"})
    assert "did you mean STEADYWORKER_SPARK_MASTER?" in str(caught.value)


def test_a_given_setting_imports_only_its_own_service(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo")
    options(tmp_path, {"STEADYWORKER_SPARK_MASTER": "local[2]"})
    assert "third_party_echo" not in sys.modules


def test_a_service_whose_findings_fail_is_an_error(tmp_path: Path, installed: Callable[..., None]) -> None:
    installed("echo", ECHO.format(name="echo").replace("yield Finding", "raise OSError('no disk') or Finding"))
    (finding,) = service_findings(options(tmp_path, echo_voice="high"), SystemClock())
    assert (finding.level, finding.id) == ("error", "config.entry-point")
    assert "third_party_echo (of third_party_echo)" in finding.what
    assert finding.what.endswith("got OSError: no disk.")


def test_a_purge_that_fails_is_one_line(
    tmp_path: Path, installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed("echo", ECHO.format(name="echo").replace('self.calls.append(f"purge', 'raise OSError(f"no'))
    services = job_services(options(tmp_path), SystemClock())
    called(services, "echo")

    for service in services.values():
        service.purge(lambda uids: uids[:1])

    assert warnings(caplog) == [("service_purge_failed", "echo", "steadyworker.purge-failed")]


def test_a_purge_passes_on_that_the_ledger_is_away(tmp_path: Path, installed: Callable[..., None]) -> None:
    def away(_uids: object) -> list[str]:
        raise LedgerUnavailable("away")

    installed("echo")
    services = job_services(options(tmp_path), SystemClock())
    called(services, "echo")
    with pytest.raises(LedgerUnavailable):
        services["echo"].purge(away)


def test_two_distributions_with_one_service_are_refused_only_where_the_service_is_used(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed("echo")
    installed("echo", module="third_party_other")
    refused = r"one entry point 'echo' .*third_party_.* and third_party_.*uninstall one of them"
    services = job_services(options(tmp_path), SystemClock())

    with pytest.raises(ConfigError, match=refused):
        called(services, "echo")
    with pytest.raises(ConfigError, match=refused):
        options(tmp_path, echo_voice="high")
    (finding,) = broken_services(options(tmp_path))
    assert finding.level == "warning"
    assert re.search(refused, str(finding).replace("Remedy: ", ""))


def test_a_folder_with_a_stage_is_recorded_by_the_service_of_exports(tmp_path: Path) -> None:
    remember_folder(job_services(options(tmp_path), SystemClock()), b"/out")
    (entry,) = (tmp_path / "state" / "stages").iterdir()
    assert entry.read_bytes() == b"/out"


def test_without_that_service_an_export_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    remember_folder({}, b"/out")
    assert warnings(caplog) == [("service_unusable", "stages", "config.entry-point")]
