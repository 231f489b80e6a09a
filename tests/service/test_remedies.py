"""The log's remedies come from installed packages, and no line is lost for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.diagnosis.remedies import Remedies
from steadyworker.service.remedies import GROUP, InstalledRemedies
from tests.support.distributions import distribution

FENCED = {"explain": "steadyworker.fenced"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("third_party_remedies", "third_party_broken", "third_party_odd"):
        sys.modules.pop(name, None)


def test_the_catalogue_is_one_of_them() -> None:
    assert InstalledRemedies()(FENCED)
    assert InstalledRemedies()({"explain": "no.entry"}) == ""


def test_the_first_package_that_has_one_wins(site: Path) -> None:
    source = "def make():\n    return lambda line: 'Ask Rosa.' if line['explain'] == 'shop.rosa' else ''"
    distribution(site, "third_party_remedies", GROUP, {"zoo": "third_party_remedies:make"}, source)

    remedies = InstalledRemedies()

    assert "third_party_remedies" not in sys.modules, "a start without an error imports nothing"
    assert remedies({"explain": "shop.rosa"}) == "Ask Rosa."
    assert "Rosa" not in remedies(FENCED)


@pytest.mark.parametrize("source", ["import no_such_library", "make = None", "def make(): raise OSError('no file')"])
def test_a_broken_one_is_named_once_and_the_others_stay(site: Path, source: str) -> None:
    distribution(site, "third_party_broken", GROUP, {"broken": "third_party_broken:make"}, source)
    remedies = InstalledRemedies()

    first = remedies(FENCED)

    assert first.startswith(
        "Expected third_party_broken:make (of third_party_broken) to be usable as 'broken' in the group"
    )
    assert remedies(FENCED) == Remedies()(FENCED)


def test_one_that_fails_at_a_line_costs_no_line(site: Path) -> None:
    source = "def make():\n    def remedy(line): raise RuntimeError('odd')\n    return remedy"
    distribution(site, "third_party_odd", GROUP, {"a-odd": "third_party_odd:make"}, source)
    assert InstalledRemedies()(FENCED) == Remedies()(FENCED)
    assert "third_party_odd" in sys.modules, "it was asked, and failed"
