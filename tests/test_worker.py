"""Workers: what is checked when the class is made, when it is run, and when it is looked for by name."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from steadyworker import ConfigError, Job, RetryPolicy, Worker
from steadyworker.names import file_name
from steadyworker.spec import checkpoint_type, payload_type, spec_of
from steadyworker.system.procfs import cgroup_limit
from steadyworker.units import count_text, parse_size, size_text
from steadyworker.worker import load_worker

T = TypeVar("T")


class NoJson:
    pass


class Plain(Worker[dict[str, int], int]):
    queue = "plain"
    time_limit = timedelta(minutes=2)
    memory_limit = None

    def handle(self, job: Job[dict[str, int], int]) -> None:
        pass


class ShopBase(Worker[T, int], Generic[T]):
    """A shop's own base: no queue, so it is abstract."""

    time_limit = 60
    concurrency = 4

    def handle(self, job: Job[T, int]) -> None:
        pass


class FromBase(ShopBase[str]):
    queue = "from-base"


class Bare(Worker):  # type: ignore[type-arg]
    queue = "bare"
    time_limit = None

    def handle(self, job: Any) -> None:
        pass


def test_a_queue_without_a_time_limit_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="has a queue but no time_limit: set `time_limit = <seconds>`"):

        class Endless(Worker[bytes]):
            queue = "endless"


def test_a_spec_holds_checked_values_in_seconds_and_bytes() -> None:
    spec = spec_of(Plain, {"memory_limit": "2 GiB", "stall_limit": 90, "retry": {"max_attempts": 2}})
    assert spec.target == "tests.test_worker:Plain"
    assert (spec.queue, spec.dead_letter_queue) == ("plain", "plain.dead")
    assert (spec.time_limit, spec.stall_limit, spec.memory_limit) == (120.0, 90.0, 2 << 30)
    assert (spec.concurrency, spec.isolation, spec.unkeyed) == (1, "process", "generate")
    assert (spec.retry.max_attempts, spec.retry.max_crashes) == (2, 3)
    assert spec_of(Bare).time_limit is None
    assert spec_of(FromBase).concurrency == 4


@pytest.mark.parametrize(
    ("cls", "payload", "checkpoint"),
    [
        (Plain, dict[str, int], int),
        (FromBase, str, int),
        (ShopBase, Any, int),
        (Bare, Any, Any),
        (Worker, Any, Any),
    ],
)
def test_the_declared_types_are_found_through_every_base(cls: Any, payload: Any, checkpoint: Any) -> None:
    assert (payload_type(cls), checkpoint_type(cls)) == (payload, checkpoint)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"queue": "a\nb"},
            "Plain.queue: Expected a queue name (no control characters, no blanks at its ends) that matches",
        ),
        ({"queue": ""}, "Plain.queue: Expected a text that is not empty. Got ''."),
        (
            {"time_limit": 0},
            "Plain.time_limit: Expected seconds above 0, a timedelta, a text such as '3h', or None. Got 0.",
        ),
        ({"time_limit": "soon"}, "Plain.time_limit: Expected seconds above 0"),
        ({"stall_limit": float("inf")}, "Plain.stall_limit: Expected seconds above 0"),
        (
            {"stall_limit": 0.2},
            "Plain.stall_limit: Expected at least 1 second, because progress is passed on only five",
        ),
        ({"concurrency": 0}, "Plain.concurrency: Expected a whole number of at least 1. Got 0."),
        ({"concurrency": True}, "Plain.concurrency: Expected a whole number"),
        ({"jobs_per_child": 1.5}, "Plain.jobs_per_child: Expected a whole number"),
        ({"memory_limit": "much"}, "Plain.memory_limit: Expected a size such as '2 GiB' or '512 MB', got 'much'."),
        ({"memory_limit": -1}, "Plain.memory_limit: Expected bytes, a size such as '2 GiB', 'auto' or None. Got -1."),
        ({"isolation": "fork"}, "Plain.isolation: Expected one of 'process', 'thread'. Got 'fork'."),
        ({"unkeyed": "drop"}, "Plain.unkeyed: Expected one of 'generate', 'reject'. Got 'drop'."),
        ({"key_header": ""}, "Plain.key_header: Expected a text that is not empty."),
        ({"retry": {"max_attempt": 3}}, "Plain.retry: Expected a RetryPolicy, or a table with some of max_attempts"),
        ({"retry": {"max_attempts": 0}}, "Plain.retry: Expected a whole number of at least 1."),
        ({"concurency": 2}, "Plain has no attribute 'concurency': did you mean 'concurrency'?"),
    ],
)
def test_a_wrong_attribute_is_named_with_what_was_expected(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spec_of(Plain, overrides)
    assert str(refused.value).startswith(said)
    assert str(refused.value).lower().count(" got ") == ("did you mean" not in said)


def test_what_cannot_run_is_refused_with_the_remedy() -> None:
    class Local(Plain):
        pass

    class Handless(Worker[bytes]):
        queue = "handless"
        time_limit = 1

    class Odd(Worker[NoJson]):
        queue = "odd"
        time_limit = 1

        def handle(self, job: Any) -> None:
            pass

    for cls, said in (
        (ShopBase, "has no queue, so it is abstract"),
        (Local, "is defined inside a function, where a child process cannot find it"),
        (Handless, "has no handle: write `def handle"),
        (Odd, "Expected a payload type that JSON can be decoded to"),
        ("app:Worker", "Expected a Worker class, got 'app:Worker'"),
    ):
        with pytest.raises(ConfigError, match=said):
            spec_of(cls)  # type: ignore[arg-type]
    assert spec_of(Local, {"isolation": "thread"}).isolation == "thread"


def test_a_misspelt_queue_or_handle_is_named() -> None:
    class NoQueue(Worker[bytes]):
        queues = "plain"

    class NoHandle(Worker[bytes]):
        queue = "handless"
        time_limit = 1

        def handel(self, job: Any) -> None:
            pass

    with pytest.raises(ConfigError, match="NoQueue has no queue, so it is abstract: rename 'queues' to 'queue'"):
        spec_of(NoQueue)
    with pytest.raises(ConfigError, match="NoHandle has no handle: rename 'handel' to 'handle'"):
        spec_of(NoHandle)


async def yields_and_awaits(self: object, job: object) -> AsyncIterator[None]:
    """A handler of which nothing would run."""
    yield


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"__init__": lambda self, db: None},
            r"made without arguments, got __init__\(db\): prepare .* in `def setup\(self\)`",
        ),
        (
            {"handle": lambda self: None},
            r"Odd.handle\(self, job\), got handle\(self\): write `def handle\(self, job\)`",
        ),
        ({"handle": lambda self, job, more: None}, r"got handle\(self, job, more\)"),
        ({"handle": lambda self, *, job: None}, r"got handle\(self, \*, job\)"),
        ({"setup": lambda self, db: None}, r"Odd.setup\(self\), got setup\(self, db\)"),
        ({"teardown": lambda: None}, r"Odd.teardown\(self\), got teardown\(\)"),
        ({"handle": functools.partial(lambda self, job: None)}, r"Expected Odd\.handle\(self, job\)"),
        ({"handle": lambda self, job: (yield)}, "to be a function, got a generator, of which nothing would run"),
        ({"handle": yields_and_awaits}, "to be a function, got a generator, of which nothing would run"),
    ],
)
def test_methods_that_no_slot_could_call_are_refused_when_the_class_is_checked(
    attributes: dict[str, object], said: str
) -> None:
    fine = {"queue": "odd", "time_limit": 1, "handle": lambda self, job: None}
    with pytest.raises(ConfigError, match=said):
        spec_of(type("Odd", (Worker,), fine | attributes), {"isolation": "thread"})


class Called:
    """An object with `__call__` is no method, so it gets no `self`."""

    def __call__(self, job: object) -> None: ...


@pytest.mark.parametrize(
    "handle",
    [
        lambda self, job: None,
        lambda self, job, more=1: None,
        lambda *arguments: None,
        staticmethod(lambda job: None),
        classmethod(lambda cls, job: None),
        functools.partialmethod(lambda self, more, job: None, 1),
        functools.partial(lambda settings, job: None, "settings"),
        Called(),
        print,
    ],
)
def test_every_handler_that_can_be_called_with_a_job_is_accepted(handle: object) -> None:
    odd = type("Odd", (Worker,), {"queue": "odd", "time_limit": 1, "handle": handle})
    assert spec_of(odd, {"isolation": "thread"}).cls is odd


def test_durations_of_a_worker_are_read_as_everywhere() -> None:
    class Odd(Worker[int]):
        queue = "odd"
        time_limit = "3h"
        stall_limit = timedelta(minutes=5)

        def handle(self, job: Job[int]) -> None:
            """Never run."""

    spec = spec_of(Odd, {"isolation": "thread"})
    assert (spec.time_limit, spec.stall_limit) == (10800, 300)


@pytest.mark.parametrize(("key", "round_"), [("x.r1", 0), ("x.r1", 1), ("x.r12", 0)])
def test_no_key_has_the_file_name_of_another_keys_round(key: str, round_: int) -> None:
    others = {file_name("x", number) for number in range(20)} | {file_name("x.r1", 2)}
    assert file_name(key, round_) not in others
    assert file_name("x.r", 0) == "x.r", "a key that is no round stays as it is"


MAIN = """
from steadyworker import Worker
from steadyworker.spec import spec_of
class Mine(Worker[bytes]):
    queue = 'mine'
    time_limit = 1
    def handle(self, job): pass
print(spec_of(Mine).target)
"""


def test_a_worker_of_a_notebook_is_refused_with_what_to_do() -> None:
    """A notebook's cells, and standard input, are in no file that a child could import."""
    said = subprocess.run([sys.executable], input=MAIN, capture_output=True, text=True, check=False).stderr
    assert "use steadyworker.testing.run_one(Worker, payload)" in said
    assert "start `steadyworker run app.py:Class`" in said


def test_a_worker_in_the_file_that_is_executed_is_imported_from_it(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    for file in (tmp_path / "mine.py", package / "mine.py"):
        file.write_text(MAIN)
    for command, target in (([tmp_path / "mine.py"], "mine:Mine"), (["-m", "shop.mine"], "shop.mine:Mine")):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert done.stdout == f"{target}\n"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app", "Expected a Worker as module:Class, got 'app'"),
        (":Plain", "Expected a Worker as module:Class"),
        ("nowhere.app:Plain", "There is no module 'nowhere' (for 'nowhere.app:Plain') in "),
        ("tests.test_worker:Plian", "Module 'tests.test_worker' has no 'Plian': did you mean tests.test_worker:Plain?"),
        ("tests.test_worker:Zzz", "Module 'tests.test_worker' has no 'Zzz': it has Plain, ShopBase, "),
        (
            "src/exports:Plain",
            "Expected a Worker as module:Class, got 'src/exports:Plain': did you mean src.exports:Plain?",
        ),
        (
            "tests/test_worekr.py:Plain",
            "There is no file 'tests/test_worekr.py': did you mean tests/test_worker.py:Plain?",
        ),
        ("nowhere/app.py:Plain", "There is no file 'nowhere/app.py': name a file that exists."),
        ("exports.Plain", "Expected a Worker as module:Class, got 'exports.Plain': did you mean exports:Plain?"),
        ("json:Worker", "Module 'json' has no 'Worker': it has no Worker at all."),
        ("tests.test_worker:Path", "Expected 'tests.test_worker:Path' to be a subclass of steadyworker.Worker"),
    ],
)
def test_the_error_for_a_target_that_is_none_names_what_is_there(target: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_worker(target)
    assert str(refused.value).startswith(said)


def test_a_target_is_found_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder comes first on the path, as with `python file.py`, so that it can import its neighbours."""
    (tmp_path / "shop_neighbour.py").write_text("QUEUE = 'shop'\n")
    text = "from steadyworker import Worker\nfrom shop_neighbour import QUEUE\nclass Shop(Worker[bytes]):\n    queue, time_limit = QUEUE, 1\n"
    for name in ("shop_file.py", "queue.py", "shop-file.py"):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = load_worker(f"{tmp_path}/shop_file.py:Shop")
    assert (found.queue, found.__module__) == ("shop", "shop_file")
    with pytest.raises(ConfigError, match=r"got 'queue.py': rename it, because Python has a module of that name"):
        load_worker(f"{tmp_path}/queue.py:Shop")
    with pytest.raises(ConfigError, match=r"got 'shop-file.py': rename it, because it is no name of a module"):
        load_worker(f"{tmp_path}/shop-file.py:Shop")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/shop_file.py").write_text(text)
    with pytest.raises(
        ConfigError, match=r"to be the module 'shop_file', got .*, which comes first on the Python path"
    ):
        load_worker(f"{tmp_path}/other/shop_file.py:Shop")


def test_a_target_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_app.py").write_text(
        "from steadyworker import Worker\nclass Shop:\n    class Inner(Worker[bytes]):\n        pass\n",
        encoding="utf-8",
    )
    (tmp_path / "shop_broken.py").write_text("import not_installed_anywhere\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_worker("shop_app:Shop.Inner").__name__ == "Inner"
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_worker("shop_broken:Worker")


def test_a_policy_is_judged_when_it_is_written() -> None:
    with pytest.raises(ConfigError, match="max_attempts as a whole number of at least 1"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ConfigError, match="wait"):
        RetryPolicy(wait=lambda state: -1)


def test_the_automatic_memory_limit_is_a_share_of_the_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyworker.spec.cgroup_limit", lambda: 1000)
    assert spec_of(Plain, {"memory_limit": "auto", "concurrency": 4}).memory_limit == 200
    monkeypatch.setattr("steadyworker.spec.cgroup_limit", lambda: None)
    assert spec_of(Plain, {"memory_limit": "auto"}).memory_limit is None


def test_the_smallest_limit_of_any_cgroup_above_us_counts(tmp_path: Path) -> None:
    inner = tmp_path / "v2" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n", encoding="ascii")
    (inner.parent / "memory.max").write_text("4096\n", encoding="ascii")
    (tmp_path / "v2" / "memory.max").write_text("8192\n", encoding="ascii")
    (tmp_path / "self").write_text("0::/outer/inner\n", encoding="ascii")
    assert cgroup_limit(tmp_path / "self", tmp_path / "v2") == 4096

    old = tmp_path / "v1" / "memory" / "job"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n", encoding="ascii")
    (tmp_path / "self").write_text("9:cpu:/job\n4:memory:/job\n", encoding="ascii")
    assert cgroup_limit(tmp_path / "self", tmp_path / "v1") is None
    (old / "memory.limit_in_bytes").write_text("2048\n", encoding="ascii")
    assert cgroup_limit(tmp_path / "self", tmp_path / "v1") == 2048
    assert cgroup_limit(tmp_path / "missing", tmp_path / "v1") is None


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("2 GiB", 2 << 30), ("1.5g", 1_500_000_000), ("64KiB", 1 << 16), (" 1 MB ", 10**6)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_counts_are_written_with_their_noun() -> None:
    assert [count_text(number, "crash", "crashes") for number in (0, 1, 2)] == ["0 crashes", "1 crash", "2 crashes"]
    assert [count_text(number, "job") for number in (1, 1200)] == ["1 job", "1,200 jobs"]
    assert size_text(1) == "1 byte"


def test_sizes_are_written_as_people_read_them() -> None:
    assert [size_text(size) for size in (12, 2048, 3 << 20, int(2.1 * (1 << 30)))] == [
        "12 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "2.1 GiB",
    ]
