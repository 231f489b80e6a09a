"""A URL's scheme names the adapter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.backends import registry
from steadyworker.errors import ConfigError
from tests.support.distributions import distribution

SPEC = QueueSpec("q", "q.dead")


def install(folder: Path, name: str, scheme: str, source: str) -> None:
    """A distribution with an adapter."""
    distribution(folder, name, registry.GROUP, {scheme: name}, source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_embedded_broker_is_there(tmp_path: Path) -> None:
    assert "sqlite" in registry.adapters()
    adapter = registry.open_adapter(f"sqlite:{tmp_path / 'broker.db'}", SPEC, Settings())
    assert adapter.capabilities.one_host
    adapter.stop(1)


def test_a_third_partys_adapter_looks_like_ours(site: Path) -> None:
    install(site, "third_party_a", "odd+tls", "def open_adapter(url, spec, settings): return (url, spec.queue)")
    assert "odd+tls" in registry.adapters()
    assert "third_party_a" not in sys.modules
    opened: object = registry.open_adapter("ODD+TLS://h", SPEC, Settings())
    assert opened == ("ODD+TLS://h", "q")


def test_an_adapters_own_error_is_passed_on(site: Path) -> None:
    install(
        site,
        "third_party_b",
        "needy",
        "from steadyworker.errors import ConfigError\n"
        "def open_adapter(url, spec, settings): raise ConfigError('pip install steadyworker[needy]')",
    )
    with pytest.raises(ConfigError, match=r"^pip install steadyworker\[needy\]$"):
        registry.open_adapter("needy:", SPEC, Settings())


@pytest.mark.parametrize("source", ["import no_such_client", "nothing = 1", "raise OSError('no disk')"])
def test_a_broken_adapter_is_named(site: Path, source: str) -> None:
    install(site, "third_party_c", "broken", source)
    sys.modules.pop("third_party_c", None)
    with pytest.raises(ConfigError, match=r"third_party_c \(of third_party_c\) to be usable as 'broken'"):
        registry.open_adapter("broken:", SPEC, Settings())


def test_two_adapters_for_one_scheme_are_refused_only_for_its_urls(site: Path, tmp_path: Path) -> None:
    install(site, "third_party_d", "twice", "")
    install(site, "third_party_e", "twice", "")
    registry.open_adapter(f"sqlite:{tmp_path / 'broker.db'}", SPEC, Settings()).stop(1)
    with pytest.raises(ConfigError, match=r"one entry point 'twice' .*steadyworker\.adapters.*uninstall one"):
        registry.open_adapter("twice:", SPEC, Settings())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlit:/x", r"got 'sqlit': did you mean sqlite:\?"),
        ("canary", "a text without a scheme"),
        ("zzz://a:canary@h", "got 'zzz': correct --broker, or install an adapter"),
        ("rabbitmq://a:canary@h", r"got 'rabbitmq': did you mean amqps?:\?"),
        ("postgres://a:canary@h", "got 'postgres': correct --broker, or install an adapter"),
    ],
)
def test_an_unknown_scheme_names_the_known_ones_and_the_near_match_and_no_secret(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        registry.open_adapter(url, SPEC, Settings())
    assert "sqlite" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_package_whose_scheme_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable installation that is older than the package has no entry point for it."""
    older = {"sqlite": registry.adapters()["sqlite"]}
    monkeypatch.setattr(registry, "installed", lambda _group: older)
    for url in ("rabbitmq://a:canary@h", "rabbitmq+ssl://a:canary@h"):
        with pytest.raises(ConfigError, match=r"pip install 'steadyworker\[rabbitmq\]'\.$") as caught:
            registry.open_adapter(url, SPEC, Settings())
        assert "canary" not in str(caught.value)
