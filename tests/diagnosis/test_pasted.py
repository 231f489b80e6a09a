"""Each sample in each form in which people paste, and in each variation in which programs write: the failure is still recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steadyworker.diagnosis.loose import loosened
from steadyworker.diagnosis.report import as_data, title
from steadyworker.diagnosis.scan import Scanner, Search
from steadyworker.diagnosis.timeline import Sighting, Timelines
from tests.diagnosis import sample_files
from tests.diagnosis.explaining import catalogue, search
from tests.diagnosis.pastes import FORMS
from tests.diagnosis.small_catalogue import SMALL
from tests.diagnosis.variations import VARIATIONS

SAMPLES = [(id, sample.text.strip("\n")) for id, samples in sample_files.load().items() for sample in samples]
ORDINARY = sorted(Path(__file__).with_name("ordinary").glob("*.log"))


def found(text: str, within: Search | None = None) -> list[Sighting]:
    return list(Scanner("paste", within or search()).whole([text.encode()]))


def missed(form: Callable[[str], str], *, of_programs: bool = False) -> tuple[list[str], int]:
    """Return the ids of the samples that are not recognised in this form, and the number of samples that it changes."""
    changed = [(id, formed) for id, text in SAMPLES if (formed := form(text)) != text]
    if of_programs:
        changed = [(id, text) for id, text in changed if not id.startswith("steadyworker.")]
    certain = [(id, {seen.entry.id for seen in found(text) if not seen.probable}) for id, text in changed]
    return [id for id, ids in certain if id not in ids], len(changed)


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_a_pasted_sample_is_recognised(form: Callable[[str], str]) -> None:
    """All of them, but for a few in which no reader can know where a word was cut."""
    lost, samples = missed(form)
    wrapped = any(form is each for name, each in FORMS.items() if "wrapped" in name or name == "boxed")
    assert len(lost) <= (samples // 100 if wrapped else 0), lost


@pytest.mark.slow
@pytest.mark.parametrize("variation", VARIATIONS.values(), ids=list(VARIATIONS))
def test_a_varied_sample_is_recognised(variation: Callable[[str], str]) -> None:
    lost, samples = missed(variation, of_programs=True)
    assert len(lost) <= 0.13 * samples, lost


def test_at_least_nine_in_ten_variations_are_recognised() -> None:
    """In every fifth kind; the slow test above has them all."""
    rates = [missed(variation, of_programs=True) for variation in [*VARIATIONS.values()][::5]]
    assert sum(len(lost) for lost, _ in rates) <= sum(samples for _, samples in rates) / 10


def pieces(log: Path) -> Iterator[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    for size in (3, 40):
        yield from ("\n".join(lines[at : at + size]) for at in range(0, len(lines), size))


@pytest.mark.parametrize("log", ORDINARY, ids=[log.stem for log in ORDINARY])
def test_pasted_pieces_of_an_ordinary_log_have_no_finding(log: Path) -> None:
    """Not even one that is only probable."""
    for piece in pieces(log):
        for text in (piece, FORMS["wrapped at 80 columns, in words"](piece)):
            assert not [seen.entry.id for seen in found(text)], text


def test_the_lines_of_a_restored_text_have_the_numbers_of_the_pasted_lines() -> None:
    text = "nothing\n\n> 2026-11-25 10:00:00,000 ERROR beats missed\n> on <0.1.0>"
    (seen,) = found(text, Search(SMALL.values()))
    assert (seen.entry.id, seen.record.line, seen.groups) == ("small.beats", 3, {"connection": "<0.1.0>"})


def test_each_event_of_kubectl_stays_a_line() -> None:
    events = (
        '88s         Warning   Unhealthy   pod/shop-6d4cb67bb8-svkt5       Liveness probe failed: command timed out: "/bin/sh" timed out after 1s\n'
        "11m         Warning   BackOff     pod/shop-6d4cb67bb8-svkt5       Back-off restarting failed container shop in pod shop-6d4cb67bb8-svkt5\n"
    )
    (probe,) = (seen for seen in found(events) if seen.entry.id == "kubernetes.probe-failed")
    assert probe.record.text == events.splitlines()[0]


def test_a_long_text_is_no_paste() -> None:
    text = "ordinary\n" * 10_000 + "beats missed\non <0.1.0>\n"
    assert [seen for seen in found(text, Search(SMALL.values())) if not seen.probable] == []


def test_a_specific_hint_without_its_pattern_is_a_probable_finding() -> None:
    timelines = Timelines(catalogue().values())
    (seen,) = found("2026-11-25 10:00:00 WARN the channel has timed out waiting for a consumer acknowledgement")
    timelines.add(seen)
    timelines.end()
    (finding,) = timelines.findings.values()
    assert (seen.probable, seen.entry.id) == (True, "amqp.delivery-timeout")
    assert title(finding).startswith("Probably: ")
    assert as_data(1, finding)["certainty"] == "probable"


@pytest.mark.parametrize(
    "line",
    [
        *("ValueError: no such thing", "com.example.ShopException: gone", "java.lang.IllegalStateException"),
        *(
            "kernel: Killed process 4711 (java) total-vm:8000000kB",
            "the container ended with exit code 137",
            "FATAL: no",
        ),
        *("panic: runtime error: index out of range", "thread 'main' panicked at src/main.rs:3", "ended by SIGKILL"),
        *("E/Shop: cannot pay", "E0501 10:00:00.123456       1 pay.go:42] cannot pay", "Memory cgroup: OOM"),
        *("Traceback (most recent call last):\n  File x\nShopError", "2026-11-25 10:00:00 WARN ShopException: gone"),
    ],
)
def test_what_looks_like_a_failure_and_is_not_known_is_unknown(line: str) -> None:
    within = Search(SMALL.values())
    assert found(line, within) == []
    assert within.unknown.count == 1


@pytest.mark.parametrize("line", ["INFO retried after ValueError: gone", "no errors found", "an exceptional day"])
def test_ordinary_words_are_no_failure(line: str) -> None:
    within = Search(SMALL.values())
    assert found(line, within) == []
    assert within.unknown.count == 0


def test_each_pattern_can_be_loosened() -> None:
    for entry in catalogue().values():
        for pattern in entry.patterns:
            assert loosened(pattern.regex).groupindex.keys() <= entry.groups


def test_lines_that_come_all_the_time_are_no_paste() -> None:
    """What was kept for a paste is yielded at once, and later lines as they come, until they pause."""
    scanner = Scanner("-", Search(SMALL.values()))
    assert list(scanner.feed(b"gone wrong\nordinary\n")) == []
    assert [seen.entry.id for seen in scanner.streams()] == ["small.any"]
    assert [seen.entry.id for seen in scanner.feed(b"gone wrong\nordinary\n")] == ["small.any"]
    assert list(scanner.flush()) == []
    assert list(scanner.feed(b"beats\n")) == []
    assert list(scanner.feed(b"missed on <0.1.0>\nordi")) == []
    assert [(seen.entry.id, seen.line) for seen in scanner.flush()] == [("small.beats", 5)]
