"""
The house's rules, enforced by reading the source: which file may import which, and what no file may do.

A file of `steadyworker/` lives on a floor or in a wing.
It imports from its own floor and from those below; nothing imports upward, and nothing in a circle.
A new file gets a line in `FLOORS`, or stands in a folder that has one (`slots/`); an exact line outranks its folder's.
A package face (an `__init__.py` that only hands names on) has no room, and no file of the house imports through one:
that would hide which file it leans on.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

import pytest

REPOSITORY = Path(__file__).parents[1]

FLOORS: dict[str, int] = {
    # 1. Plain values, standard library only.
    "errors.py": 1,
    "findings.py": 1,
    "delivery.py": 1,
    "depth.py": 1,
    "outcome.py": 1,
    "clock.py": 1,
    "names.py": 1,
    "units.py": 1,
    "text/": 1,
    # 2. Contracts and pure rules, no I/O.
    "adapter.py": 2,
    "retry.py": 2,
    "events.py": 2,
    "lifecycle.py": 2,
    "ledger/base.py": 2,
    "ledger/facts.py": 2,
    "ledger/job_id.py": 2,
    "ledger/retention.py": 2,
    "ledger/rules.py": 2,
    "export.py": 2,
    # 3. Parts.
    "system/": 3,
    "telemetry/": 3,
    "ledger/": 3,
    "config/": 3,
    "payload.py": 3,
    # 4. A job.
    "job.py": 4,
    "link.py": 4,
    "worker.py": 4,
    "spec.py": 4,
    "programs/": 4,
    # 5. Where it runs, and what a URL names.
    "slots/": 5,
    "backends/": 5,
    # 6. What is done with a delivery, and what is sent.
    "runner/": 6,
    "client.py": 6,
    "actions/": 6,
    # 7-8. Shell.
    "service/": 7,
    "deploy/": 7,
    "cli/": 8,
    "__main__.py": 8,
}


@dataclass(frozen=True)
class Wing:
    """
    A side room of the house.

    It leans on the floors up to `floors` and on the rooms in `also`; only files from floor `seen_from` up know it.
    """

    floors: int
    also: tuple[str, ...] = ()
    seen_from: int = 7


WINGS: dict[str, Wing] = {
    "exports/": Wing(
        floors=2,
        also=("telemetry/", "system/", "config/options.py", "config/services.py"),
        seen_from=10,
    ),
    "exports/cli/": Wing(floors=8, also=("exports/",), seen_from=10),
    "diagnosis/": Wing(floors=2, also=("telemetry/", "pages/"), seen_from=10),
    "diagnosis/cli/": Wing(floors=8, also=("diagnosis/",), seen_from=10),
    "pages/": Wing(floors=1, seen_from=10),  # what rooms that draw pages share
    "dashboard/": Wing(
        floors=3, also=("pages/", "backends/opening.py", "backends/waiting.py", "dashboard/doing.py"), seen_from=10
    ),
    "dashboard/bulk.py": Wing(
        floors=3, also=("dashboard/", "pages/", "actions/", "backends/connections.py"), seen_from=10
    ),
    "dashboard/doing.py": Wing(
        floors=3, also=("dashboard/", "pages/", "actions/", "backends/connections.py"), seen_from=10
    ),  # the only files that write
    "dashboard/cli/": Wing(floors=8, also=("dashboard/",), seen_from=10),
    "dashboard/top/": Wing(floors=8, also=("dashboard/",), seen_from=10),  # the command line's tables, and its actions
    "network/": Wing(floors=2, seen_from=10),  # what adapters for brokers on a network share; the core never imports it
    "testing/": Wing(floors=7, seen_from=10),  # shipped for users; never imported
}

# Houses of their own in this distribution: the core finds them by entry points (`system/entry_points.py`) only.
SIDE_HOUSES = ("exports/", "diagnosis/", "dashboard/", "pages/")

# What runs inside a child speaks frames, and knows neither broker nor ledger; what DuckDB and Spark share is in exports/ itself.
STRANGERS: dict[str, tuple[str, ...]] = {
    "slots/child.py": ("adapter.py", "delivery.py", "backends/", "ledger/"),
    "exports/duckdb/": ("exports/spark/",),
    "exports/spark/": ("exports/duckdb/",),
}

ADAPTERS_MAY_IMPORT = {
    "adapter.py",
    "errors.py",
    "findings.py",
    "names.py",
    "network/",
    "system/mounts.py",
    "system/private.py",
}
ADAPTER_FILES = {"__init__.py", "adapter.py", "connection.py", "topology.py", "errors.py"}
OPTIONAL_LIBRARIES = {
    "adlfs",
    "aiohttp",  # with gcsfs
    "boto3",
    "botocore",
    "duckdb",
    "fsspec",
    "gcsfs",
    "opentelemetry",
    "pamqp",
    "pcapy",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pyspark",
    "sshfs",
    "xlsxwriter",
}
# Which file may import what inside a function (the end of each name is left open), and why it has to.
LATE: dict[str, tuple[str, ...]] = {
    "steadyworker/cli/__init__.py": ("steadyworker.cli.",),  # a verb is imported when it is called
    "steadyworker/dashboard/cli/dashboard.py": ("steadyworker.dashboard.",),  # its libraries are an extra
    "steadyworker/dashboard/application.py": (
        "steadyworker.dashboard.doing",
    ),  # a page without actions knows no runner
    "steadyworker/dashboard/top/command.py": ("steadyworker.dashboard.top.view",),  # its library is an extra
    "steadyworker/diagnosis/outputs.py": ("steadyworker.diagnosis.page",),  # its library is an extra
    "steadyworker/testing/plugin.py": ("",),  # pytest imports it at every start, in every project of a user's
    "steadyworker/backends/opening.py": ("steadyworker.ledger.postgres.",),  # its library is an extra
    # Together they take a third of a child's start and 7 MB of each child; most Workers need neither.
    "steadyworker/slots/execute.py": ("asyncio",),
    "steadyworker/telemetry/logs.py": ("structlog",),
    "steadyworker/service/monitor.py": (
        "steadyworker.service.health",
    ),  # it needs asyncio and http.server, for --health only
}
BROKERS = re.compile("rabbit|amqp|pika|stomp|activemq|artemis|rocketmq", re.IGNORECASE)
SERVICES = re.compile("spark", re.IGNORECASE)
MOST_TOP_FILES = 21
MOST_FLOORS = 12
"""As many rooms, one upon the other, as a reader can keep in mind."""
CLOCKS = {
    *(f"time.{name}{ns}" for name in ("time", "monotonic", "perf_counter", "clock_gettime") for ns in ("", "_ns")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
LOGGING = {"logging", "structlog", "warnings"}
# It is used in a producer's process, which has no worker that could log for it.
LOGS_FOR_PRODUCERS = {"adapters/steadyworker_rocketmq/transactions.py"}

Value = TypeVar("Value")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class File:
    """One source file: its tree, its imports, and the dotted names that it uses."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root = root
        self.name = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)

    @cached_property
    def is_face(self) -> bool:
        """Whether it only hands names on: a docstring, imports, plain tables of names and a lazy `__getattr__`."""
        return self.name.endswith("__init__.py") and all(
            isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If, ast.Expr))
            or (isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", "__dir__"})
            for node in self.tree.body
        )

    def imports(self, tree: ast.AST | None = None) -> Iterator[tuple[ast.stmt, str]]:
        """Every import in `tree` (the whole file without one) as a dotted name, those for type checkers included."""
        folder = self.name.removeprefix("adapters/").split("/")[:-1]
        for node in ast.walk(tree or self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = folder[: len(folder) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((node, f"{module}.{alias.name}") for alias in node.names)

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for: `{"monotonic": "time.monotonic"}`."""
        return {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            if isinstance(node, ast.ImportFrom)
            else alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }

    def uses(self, node: ast.AST) -> str:
        """The dotted name that an expression spells, with import aliases undone; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.uses(node.value)}.{node.attr}"
        return ""

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}: {what}"


class House:
    """The source under `root`: `core` is `steadyworker/`, `adapters` the packages beside it, by path from `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.core = {file.name: file for file in self._read("steadyworker")}
        self.adapters = {file.name: file for file in self._read("adapters")}
        self.all = {**self.core, **self.adapters}

    def _read(self, folder: str) -> Iterator[File]:
        return (File(self.root, path) for path in sorted((self.root / folder).rglob("*.py")))

    def target(self, dotted: str) -> str | None:
        """The file of `steadyworker/` that an imported module or name lives in; None when it is no name of ours."""
        parts = dotted.split(".")
        if parts[0] != "steadyworker":
            return None
        modules = ["/".join(parts), "/".join(parts[:-1])]
        candidates = [f"{module}{end}" for module in modules for end in (".py", "/__init__.py")]
        return next((path for path in candidates if path in self.core), f"{modules[1]}.py")

    def arrows(self, file: File) -> Iterator[tuple[ast.stmt, str]]:
        for node, dotted in file.imports():
            if (target := self.target(dotted)) and target != file.name:
                yield node, target


def room(name: str, table: dict[str, Value]) -> tuple[str, Value] | None:
    """The line of `table` that a path of `steadyworker/` falls under: its own, else its innermost folder's."""
    path = name.removeprefix("steadyworker/")
    folders = ["/".join(path.split("/")[:end]) + "/" for end in range(path.count("/"), 0, -1)]
    return next(((line, table[line]) for line in [path, *folders] if line in table), None)


def under(name: str, lines: tuple[str, ...]) -> bool:
    """Whether a path of `steadyworker/` is one of `lines`, or stands in a folder that is."""
    return room(name, dict.fromkeys(lines, True)) is not None


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run when the module is imported: class bodies, decorators and defaults, but no function's body."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, FUNCTIONS):
            decorators = [] if isinstance(child, ast.Lambda) else child.decorator_list
            for part in [child.args, *decorators]:
                yield from outside_functions(ast.Expr(part) if isinstance(part, ast.expr) else part)
        else:
            yield child
            yield from outside_functions(child)


# --- The rules: each yields its complaints ---------------------------------------------------------------------------


def every_file_has_a_room(house: House) -> Iterator[str]:
    for name, file in house.core.items():
        if not file.is_face and not room(name, FLOORS) and not room(name, WINGS):
            yield f"{name} has no room: give it a line in FLOORS or WINGS of tests/test_architecture.py"


def no_arrow_points_upward(house: House) -> Iterator[str]:
    for file in house.core.values():
        if file.is_face:
            continue
        floor, wing = room(file.name, FLOORS), None if room(file.name, FLOORS) else room(file.name, WINGS)
        for node, target in house.arrows(file):
            below, beside = room(target, FLOORS), None if room(target, FLOORS) else room(target, WINGS)
            if floor and below and below[1] > floor[1]:
                yield file.at(node, f"floor {floor[1]} imports {target} of floor {below[1]}")
            elif floor and beside and floor[1] < beside[1].seen_from:
                yield file.at(
                    node, f"floor {floor[1]} imports {target}, which only floors from {beside[1].seen_from} up may"
                )
            elif wing and below and below[1] > wing[1].floors and not under(target, wing[1].also):
                yield file.at(
                    node, f"wing {wing[0]} leans on floors up to {wing[1].floors}, and imports {target} of {below[1]}"
                )
            elif wing and beside and beside[0] != wing[0] and not under(target, wing[1].also):
                yield file.at(node, f"wing {wing[0]} imports {target} of wing {beside[0]}")


def plain_values_need_the_standard_library_only(house: House) -> Iterator[str]:
    for file in house.core.values():
        line = room(file.name, FLOORS)
        for node, dotted in file.imports() if line and line[1] == 1 else ():
            if (top := dotted.split(".")[0]) not in {"steadyworker", *sys.stdlib_module_names}:
                yield file.at(node, f"floor 1 imports {top}, which is not of the standard library")


def strangers_stay_strangers(house: House) -> Iterator[str]:
    for file in house.core.values():
        forbidden = room(file.name, STRANGERS)
        for node, target in house.arrows(file) if forbidden else ():
            if forbidden and under(target, forbidden[1]):
                yield file.at(node, f"imports {target}, which it must not know")


def nothing_imports_in_a_circle(house: House) -> Iterator[str]:
    files = [file for file in house.all.values() if not file.is_face]
    graph = {file.name: {target for _, target in house.arrows(file)} for file in files}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "circle of imports: " + " -> ".join(reversed(error.args[1]))


def no_file_imports_through_a_face(house: House) -> Iterator[str]:
    for file in house.core.values():
        for node, target in house.arrows(file):
            if target in house.core and house.core[target].is_face and not file.is_face:
                yield file.at(node, f"imports through the face {target}; import from the file that has the name")


def the_core_names_no_broker(house: House) -> Iterator[str]:
    """Text for people may name brokers; identifiers, imports and compared values may not."""
    for file in house.core.values():
        for node, value in spelled(file) if not under(file.name, ("diagnosis/",)) else ():
            if BROKERS.search(value):
                yield file.at(node, f"names a broker: {value!r}; say it with Capabilities, or in the adapter")


def the_core_names_no_service(house: House) -> Iterator[str]:
    """Text for people may name Spark; identifiers, imports and compared values may not."""
    for file in house.core.values():
        for node, value in spelled(file) if not under(file.name, SIDE_HOUSES) else ():
            if SERVICES.search(value):
                yield file.at(node, f"names a service: {value!r}; a service is found by its entry point")


def spelled(file: File) -> Iterator[tuple[ast.AST, str]]:
    """The identifiers, imported names and compared values of a file."""
    for node in ast.walk(file.tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, str) and field in {"id", "attr", "arg", "name", "asname", "module"}:
                yield node, value
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from ((node, value) for value in constants if isinstance(value, str))


def the_core_imports_no_side_house(house: House) -> Iterator[str]:
    """Not in a package face, not for type checkers, and not by a text such as that of `import_module("steadyworker.exports…")`."""
    named = re.compile("|".join(rf"steadyworker\.{name.rstrip('/')}\b" for name in SIDE_HOUSES))
    for file in house.core.values():
        if under(file.name, SIDE_HOUSES):
            continue
        for node, dotted in file.imports():
            if named.match(dotted):
                yield file.at(node, f"imports {dotted}; the core finds it by its entry point")
        docstrings = {node.value for node in ast.walk(file.tree) if isinstance(node, ast.Expr)}
        for part in ast.walk(file.tree):
            text = part.value if isinstance(part, ast.Constant) and part not in docstrings else None
            if isinstance(text, str) and named.match(text):
                yield file.at(part, f"names {text}; the core finds it by its entry point")


def the_core_imports_no_adapter(house: House) -> Iterator[str]:
    for file in house.core.values():
        for node, dotted in file.imports():
            if dotted.startswith("steadyworker_"):
                yield file.at(node, f"imports {dotted}; adapters are found by their entry point")


def adapters_know_the_contract_only(house: House) -> Iterator[str]:
    for file in house.adapters.values():
        own = file.name.split("/")[1]
        for node, target in house.arrows(file):
            if not under(target, tuple(ADAPTERS_MAY_IMPORT)):
                yield file.at(
                    node, f"imports {target}; an adapter may import {sorted(ADAPTERS_MAY_IMPORT)} of steadyworker"
                )
        for node, dotted in file.imports():
            top = dotted.split(".")[0]
            if top.startswith("steadyworker_") and top != own:
                yield file.at(node, f"imports another adapter: {dotted}")
            if top in LOGGING and file.name not in LOGS_FOR_PRODUCERS:
                yield file.at(node, f"imports {top}; an adapter logs nothing: it raises, or sends a Signal")


def adapters_look_alike(house: House) -> Iterator[str]:
    for package in sorted({name.rsplit("/", 1)[0] for name in house.adapters if name.count("/") == 2}):
        # A driver of an adapter has a folder of its own.
        has = {name.rsplit("/", 1)[1] for name in house.adapters if name.startswith(f"{package}/")}
        missing = sorted(ADAPTER_FILES - has)
        if missing:
            yield f"{package} lacks {missing}: who has read one adapter has read all"
    if "adapters/__init__.py" in house.adapters:
        yield "adapters/__init__.py: adapters/ is a folder, not a package"


def imports_stand_at_the_top(house: House) -> Iterator[str]:
    """Exceptions: an optional library, what LATE names, and a face's lazy `__getattr__`."""
    for file in house.all.values():
        functions = [node for node in ast.walk(file.tree) if isinstance(node, FUNCTIONS[:2])]
        for function in functions if not file.is_face else ():
            for node, dotted in file.imports(function):
                late = dotted.startswith(LATE.get(file.name, ()))
                if not late and dotted.split(".")[0] not in OPTIONAL_LIBRARIES:
                    yield file.at(node, f"{function.name}() imports {dotted}; imports stand at the top of the file")


def nothing_is_global(house: House) -> Iterator[str]:
    """No `global`, no lower-case mutable value or lock of a module, no environment read by an import."""
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    for file in house.all.values():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Global):
                yield file.at(node, f"global {', '.join(node.names)}")
        for statement in file.tree.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                constant = all(name.isupper() or (name.startswith("__") and name.endswith("__")) for name in names)
                called = file.uses(statement.value.func) if isinstance(statement.value, ast.Call) else ""
                if (isinstance(statement.value, mutable) or called in {"dict", "list", "set"}) and not constant:
                    yield file.at(statement, f"module-level state: {names}")
                if called.startswith(("threading.", "contextvars.", "queue.")):
                    yield file.at(statement, f"module-level {called}: {names}")
        for node in outside_functions(file.tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and file.uses(node) in ENVIRONMENT:
                yield file.at(node, f"reads the environment when imported ({file.uses(node)})")


def only_the_clock_reads_clocks(house: House) -> Iterator[str]:
    for file in house.all.values():
        for node in ast.walk(file.tree) if file.name != "steadyworker/clock.py" else ():
            if isinstance(node, (ast.Name, ast.Attribute)) and file.uses(node) in CLOCKS:
                yield file.at(node, f"reads a clock ({file.uses(node)}); take a Clock instead")


def nothing_executes_data(house: House) -> Iterator[str]:
    for file in house.all.values():
        for node, dotted in file.imports():
            if dotted.split(".")[0] in UNSAFE_MODULES:
                yield file.at(node, f"imports {dotted}: what comes from outside is data, never code")
        for call in ast.walk(file.tree):
            if isinstance(call, ast.Call) and file.uses(call.func) in {"eval", "exec"}:
                yield file.at(call, f"calls {file.uses(call.func)}()")


def rooms_stand_on_few_floors(house: House) -> Iterator[str]:
    """A room is a folder of `steadyworker/`, or a file beside the folders; rooms import one another in no circle."""
    rooms: dict[str, set[str]] = {}
    for file in house.core.values():
        if not file.is_face:
            known = {first_level(target) for _, target in house.arrows(file)}
            rooms.setdefault(first_level(file.name), set()).update(known - {first_level(file.name)})
    floors: dict[str, int] = {}
    try:
        for name in TopologicalSorter(rooms).static_order():
            floors[name] = 1 + max((floors[below] for below in rooms.get(name, ())), default=0)
    except CycleError as error:
        yield "circle of rooms: " + " -> ".join(reversed(error.args[1]))
    if floors and (highest := max(floors.values())) > MOST_FLOORS:
        top = [name for name, floor in floors.items() if floor == highest]
        yield f"{top} stand on floor {highest}; {MOST_FLOORS} are enough"


def first_level(name: str) -> str:
    return name.removeprefix("steadyworker/").split("/")[0]


def the_top_folder_is_short(house: House) -> Iterator[str]:
    top = sorted(name for name in house.core if name.count("/") == 1)
    if len(top) > MOST_TOP_FILES:
        yield f"steadyworker/ has {len(top)} files beside its folders, more than {MOST_TOP_FILES}: {top}"


Rule = Callable[[House], Iterator[str]]

# Each rule beside a small house that breaks it once: a rule that finds nothing there would find nothing anywhere.
RULES: dict[Rule, dict[str, str]] = {
    every_file_has_a_room: {"steadyworker/utils.py": "X = 1"},
    no_arrow_points_upward: {"steadyworker/errors.py": "from steadyworker import job", "steadyworker/job.py": ""},
    plain_values_need_the_standard_library_only: {"steadyworker/errors.py": "import msgspec"},
    strangers_stay_strangers: {"steadyworker/slots/child.py": "from steadyworker.ledger.base import Row"},
    nothing_imports_in_a_circle: {
        "steadyworker/job.py": "from steadyworker.worker import Worker",
        "steadyworker/worker.py": "from .job import Job",
    },
    no_file_imports_through_a_face: {
        "steadyworker/__init__.py": "from steadyworker.job import Job",
        "steadyworker/job.py": "",
        "steadyworker/link.py": "from steadyworker import Job",
    },
    the_core_names_no_broker: {"steadyworker/runner/runner.py": "if scheme == 'amqp': pass"},
    the_core_names_no_service: {"steadyworker/service/assemble.py": "def f(spark_master): ..."},
    the_core_imports_no_side_house: {
        "steadyworker/job.py": "if TYPE_CHECKING:\n    from steadyworker.exports.manifest import Manifest"
    },
    the_core_imports_no_adapter: {"steadyworker/service/assemble.py": "import steadyworker_sqlite"},
    adapters_know_the_contract_only: {"adapters/steadyworker_a/adapter.py": "import steadyworker.job"},
    adapters_look_alike: {f"adapters/steadyworker_a/{name}": "" for name in ADAPTER_FILES - {"errors.py"}},
    imports_stand_at_the_top: {"steadyworker/job.py": "def f():\n    import json"},
    nothing_is_global: {"steadyworker/config/resolve.py": "import os\ndef f(home=os.environ['HOME']): ..."},
    only_the_clock_reads_clocks: {"steadyworker/job.py": "from time import monotonic as now\nnow()"},
    nothing_executes_data: {"steadyworker/payload.py": "import pickle"},
    rooms_stand_on_few_floors: {
        "steadyworker/slots/base.py": "from steadyworker.job import Job",
        "steadyworker/slots/other.py": "",
        "steadyworker/job.py": "from steadyworker.slots.other import X",
    },
    the_top_folder_is_short: {f"steadyworker/file_{number}.py": "" for number in range(MOST_TOP_FILES + 1)},
}


def rule_name(value: object) -> str | None:
    return getattr(value, "__name__", "")


@pytest.fixture(scope="module")
def house() -> House:
    return House(REPOSITORY)


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_the_house_keeps(rule: Rule, house: House) -> None:
    complaints = list(rule(house))
    assert not complaints, "\n" + "\n".join(complaints)


# Other ways to break a rule.
PLANTED_TOO: list[tuple[Rule, dict[str, str]]] = [
    (the_core_imports_no_side_house, {"steadyworker/job.py": 'def f():\n    import_module("steadyworker.exports")'}),
    (the_core_imports_no_side_house, {"steadyworker/job.py": 'MODULE = "steadyworker.diagnosis.remedies"'}),
    (
        the_core_imports_no_side_house,
        {"steadyworker/job.py": 'def f(name):\n    return f"steadyworker.exports.{name}"'},
    ),
]


@pytest.mark.parametrize(("rule", "files"), [*RULES.items(), *PLANTED_TOO], ids=rule_name)
def test_one_planted_fault_is_found(rule: Rule, files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert len(list(rule(House(tmp_path)))) == 1


def late_imports(file: File) -> list[str]:
    functions = [node for node in ast.walk(file.tree) if isinstance(node, FUNCTIONS[:2])]
    return [dotted for function in functions for _, dotted in file.imports(function)]


def any_begins(names: list[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def test_no_exemption_is_stale(house: House) -> None:
    """An exemption that no file uses would let the next file in without a reason."""
    late = {(file.name, dotted) for file in house.all.values() if not file.is_face for dotted in late_imports(file)}
    used = {name: [dotted for file, dotted in late if file == name] for name in LATE}
    stale = [(name, start) for name, starts in LATE.items() for start in starts if not any_begins(used[name], start)]
    assert stale == []
    assert OPTIONAL_LIBRARIES - {dotted.split(".")[0] for _, dotted in late} == set()
