"""Exports to Google Cloud and Azure: one whole object or none, at whatever request the process dies, and for whichever of two jobs."""

from __future__ import annotations

import hashlib
import signal
import threading
from pathlib import Path

import pytest

from steadyworker.errors import Interrupt, TargetExists
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices, Payments
from tests.exports.s3.store import Request, wide
from tests.exports.stores.place import Place

pytestmark = [
    pytest.mark.xdist_group("stores"),
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),  # of gcsfs, by aiohttp
]

KEY, MANIFEST = "out/wide.csv", "out/wide.csv.manifest.json"


@pytest.mark.parametrize(
    ("at", "when", "seen", "leaves"),
    [
        pytest.param("out/.sw-stage/", "before", [], 2, id="before its record"),
        pytest.param(KEY, "before", [], 2, id="before the put"),
        pytest.param(KEY, "after", [KEY], 0, id="between object and manifest"),
        pytest.param(MANIFEST, "after", [KEY, MANIFEST], 0, id="after the manifest"),
    ],
)
def test_the_next_run_on_another_host_finishes_what_a_killed_one_left(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, when: str, seen: list[str], leaves: int
) -> None:
    ledger = tmp_path / "ledger"
    assert place.killed(KEY, ledger, at, when) == -signal.SIGKILL
    assert [key for key in place.names() if ".sw-stage" not in key] == seen

    monkeypatch.setenv("TMPDIR", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    services = FakeServices(ledger, fence=2)
    manifest = wide(9_000).write(services, place.at(KEY))

    assert (services.leaves, manifest.fence) == (leaves, 1 if seen else 2)
    assert place.names() == [KEY, MANIFEST]
    assert manifest == Manifest.parse(place.read(MANIFEST), MANIFEST)
    assert hashlib.sha256(place.read(KEY)).hexdigest() == manifest.sha256
    assert (manifest.rows, manifest.limits) == (9_000, ())
    assert not [*(tmp_path / "other").rglob("data")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_run_finishes_a_folder(place: Place, tmp_path: Path, when: str) -> None:
    ledger = tmp_path / "ledger"
    assert place.killed("out/wide", ledger, "out/wide/part-00002", when, "split") == -signal.SIGKILL
    assert "out/wide/_manifest.json" not in place.names()
    manifest = wide(9_000).write(FakeServices(ledger, fence=2), place.at("out/wide"), split_rows=3_000, format=Csv())
    files = [f"out/wide/part-0000{number}.csv" for number in (1, 2, 3)]
    assert place.names() == ["out/wide/_manifest.json", *files]
    assert verify(place.at("out/wide")) == manifest


def test_of_two_jobs_that_put_at_the_same_time_one_wins_and_the_other_learns_whose_it_is(
    place: Place, tmp_path: Path
) -> None:
    """Both have permission before either puts its file."""
    ready = threading.Barrier(2)
    ends: dict[str, Manifest | TargetExists] = {}

    def run(uid: str, count: int) -> None:
        services = FakeServices(tmp_path / uid, uid=uid, key=f"key of {uid}")

        def first() -> None:
            if services.leaves == 1:
                ready.wait()

        services.on_leave = first
        try:
            ends[uid] = wide(count).write(services, place.at(KEY))
        except TargetExists as error:
            ends[uid] = error

    threads = [threading.Thread(target=run, args=each) for each in (("uid-a", 9_000), ("uid-b", 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [uid for uid, end in ends.items() if isinstance(end, Manifest)]
    (loser,) = [uid for uid, end in ends.items() if isinstance(end, TargetExists)]
    assert f"was made by job {winner}" in str(ends[loser])
    assert verify(place.at(KEY)) == ends[winner]
    assert [key for key in place.names() if f"/{loser}/" not in key] == [KEY, MANIFEST]


@pytest.mark.parametrize("host", ["same", "other"])
def test_a_run_frozen_after_its_permission_finds_the_object_of_the_next_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The second run has other rows; on the same host it removes the first one's file, on another one the store refuses this file."""
    ledger = tmp_path / "ledger"
    made: list[Manifest] = []
    first = FakeServices(ledger)

    def take_over() -> None:
        if host == "other":
            (tmp_path / host).mkdir()
            monkeypatch.setenv("TMPDIR", str(tmp_path / host))
        made.append(wide(7).write(FakeServices(ledger, fence=2), place.at(KEY)))

    first.on_leave = take_over
    with pytest.raises(Interrupt, match="fenced"):  # its record in the ledger comes too late
        wide(5).write(first, place.at(KEY))
    assert made == [verify(place.at(KEY))]
    assert place.names() == [KEY, MANIFEST]


def test_a_run_frozen_in_its_put_makes_nothing_appear(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer has already taken the object that the next run has published."""
    ledger, taken = tmp_path / "ledger", list[Manifest]()
    rule = place.front.rule

    def freeze(request: Request) -> tuple[int, str] | None:
        if len(request.body) > 1 << 20 and not taken:
            place.front.rule = rule
            taken.append(wide(7).write(FakeServices(ledger, fence=2), place.at(KEY)))
            for key in (KEY, MANIFEST):
                place.fs.rm_file(f"{place.bucket}/{key}")
        return rule(request)

    place.front.rule = freeze
    with pytest.raises(Interrupt, match="fenced"):
        wide(20_000).write(FakeServices(ledger), place.at(KEY))
    assert (len(taken), place.names()) == (1, [])


@pytest.mark.parametrize("stop", ["cancelled", "shutdown"])
def test_an_interrupted_put_makes_nothing_appear(place: Place, tmp_path: Path, stop: str) -> None:
    services = FakeServices(tmp_path / "ledger")
    put, checked = threading.Event(), threading.Event()
    rule = place.front.rule

    def slow(request: Request) -> tuple[int, str] | None:
        if len(request.body) > 1 << 20:
            put.set()
            checked.wait(30)
        return rule(request)

    def interrupted() -> None:
        if put.is_set():
            checked.set()
            raise Interrupt(stop)  # type: ignore[arg-type]

    place.front.rule, services.on_check = slow, interrupted
    with pytest.raises(Interrupt, match=stop):
        wide(60_000).write(services, place.at(KEY))
    assert [key for key in place.names() if ".sw-stage" not in key] == []
    assert bool(place.names()) == (stop == "shutdown")


def test_what_another_put_there_stays_and_is_named(place: Place, tmp_path: Path) -> None:
    for data, metadata, says in (
        (b"not ours", {}, "has no uid of a SteadyWorker job"),
        (b"theirs", {"sw_uid": "uid-2"}, "was made by job uid-2"),
        (b"ours", {"sw_uid": "uid-1"}, "does not have the manifest of its bytes"),
    ):
        place.put(KEY, data, **metadata)
        source = Payments()
        with pytest.raises(TargetExists, match=f"^target exists: {place.at(KEY)} {says}|{says}"):
            source.export().write(FakeServices(tmp_path / "ledger"), place.at(KEY))
        assert (source.starts, place.names(), place.read(KEY)) == ([], [KEY], data)


def test_a_run_on_the_same_host_continues_the_file_at_its_position(place: Place, tmp_path: Path) -> None:
    ledger, source = tmp_path / "ledger", Payments(9_000)

    def stop(done: float | None) -> None:
        if done is not None and done >= 6_000:
            raise Interrupt("shutdown")

    with pytest.raises(Interrupt, match="shutdown"):
        source.export().write(FakeServices(ledger, on_progress=stop), place.at(KEY))
    manifest = source.export().write(FakeServices(ledger, fence=2), place.at(KEY))
    assert source.starts == [0, 6_000]
    assert (manifest.rows, verify(place.at(KEY))) == (9_000, manifest)


def test_a_large_file_goes_up_in_several_requests(place: Place, tmp_path: Path) -> None:
    manifest = wide(25_000).write(FakeServices(tmp_path / "ledger"), place.at(KEY))
    assert manifest.bytes > 3 * (8 << 20) - (1 << 20)
    assert verify(place.at(KEY)) == manifest
    assert max(len(request.body) for request in place.front.seen) < 9 << 20
