"""The wheel that users install: built here, looked into, and imported with the repository out of sight."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from steadyworker.diagnosis.catalogue import load
from steadyworker.findings import TABLE

REPOSITORY = Path(__file__).parents[1]
PACKAGES = {
    "steadyworker": REPOSITORY,
    "steadyworker_rabbitmq": REPOSITORY / "adapters",
    "steadyworker_rocketmq": REPOSITORY / "adapters",
    "steadyworker_sqlite": REPOSITORY / "adapters",
    "steadyworker_stomp": REPOSITORY / "adapters",
}


TEMPLATES = "steadyworker/deploy/templates/"
CATALOGUE = "steadyworker/diagnosis/entries/"
PAGES = ("steadyworker/pages/", "steadyworker/dashboard/templates/", "steadyworker/diagnosis/templates/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as an installer leaves it."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def pyproject() -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def alone(installed: Path, code: str) -> str:
    """What `code` prints where `steadyworker` is the wheel's and the repository is not on the path."""
    program = f"""
import sys
repository = {str(REPOSITORY)!r}
sys.path[:] = [{str(installed)!r}, *(p for p in sys.path if p not in (repository, repository + '/adapters'))]
{code}
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=installed,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_extras_ask_for_the_versions_that_were_tried() -> None:
    """
    Older ones fail in the middle of an export: tried one by one, each in an environment of its own.

    pyarrow 19 has no `json.open_json`, and 18 fails on an empty Parquet file; at a Connect server, pyspark 4.1 has no `_on_exit` and 4.0 lacks zstandard.
    XlsxWriter 3.2.0 rounds a float to 16 digits, whatever its own text is.
    """
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["exports"] == ["pyarrow>=20"]
    assert extras["xlsx"] == ["XlsxWriter>=3.3,<3.4", "pyarrow>=20"]
    assert extras["spark"] == ["pyspark>=3.5", "pyarrow>=20"]
    assert extras["spark-connect"] == ["pyspark[connect]>=4.0", "pyarrow>=20"]
    assert extras["top"] == ["textual>=8"]


def test_only_our_packages_are_in_the_wheel(names: list[str]) -> None:
    """In particular no `adapters`, `tests` or `examples`: everybody could import them by these names."""
    tops = {name.split("/")[0] for name in names}

    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_nothing_but_source_is_in_the_packages(names: list[str]) -> None:
    kept = [name for name in names if ".dist-info/" not in name and not name.startswith(TEMPLATES)]
    kept = [name for name in kept if not (name.startswith(CATALOGUE) and name.endswith(".toml"))]
    kept = [name for name in kept if not name.endswith(f"/{TABLE}")]
    kept = [name for name in kept if not (name.startswith(PAGES) and name.endswith((".html", ".css", ".js")))]
    suffixes = {Path(name).suffix or name for name in kept}

    assert suffixes == {".py", ".typed"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_declare_that_they_are_typed(names: list[str], package: str) -> None:
    assert f"{package}/py.typed" in names


def test_every_source_file_is_in_the_wheel(names: list[str]) -> None:
    sources = {
        path.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*.py")
    }

    assert sources == {name for name in names if name.endswith(".py")}


def test_the_catalogue_is_in_the_wheel(names: list[str], installed: Path) -> None:
    files = {f"{CATALOGUE}{path.name}" for path in (REPOSITORY / CATALOGUE).glob("*.toml")}
    assert files == {name for name in names if name.startswith(CATALOGUE) and name.endswith(".toml")}

    loaded = alone(installed, "from steadyworker.diagnosis.catalogue import load; print(len(load()))")
    assert int(loaded) == len(load())


def test_every_template_is_in_the_wheel(names: list[str]) -> None:
    templates = {
        path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / TEMPLATES).rglob("*") if path.is_file()
    }

    assert f"{TEMPLATES}systemd/steadyworker@.service" in templates
    assert templates == {name for name in names if name.startswith(TEMPLATES)}


def test_a_trace_becomes_a_page_by_the_wheel_alone(installed: Path) -> None:
    page = alone(
        installed,
        "from steadyworker.diagnosis.page import Page\n"
        "page = Page()\n"
        "page.add({'kind': 'trace', 'started': '2026-11-25T10:02:03.250000+00:00', 'listen': '', 'to': ''})\n"
        "page.add({'t': 1.0, 'conn': 1, 'from': 'client', 'kind': 'open', 'client': '10.0.0.1:5'})\n"
        "page.write(sys.stdout)",
    )

    assert page.startswith("<!doctype html>")
    assert "1: client 10.0.0.1:5" in page


def test_the_dashboard_is_drawn_by_the_wheel_alone(installed: Path, names: list[str]) -> None:
    files = {
        path.relative_to(REPOSITORY).as_posix()
        for folder in PAGES
        for path in (REPOSITORY / folder).iterdir()
        if path.suffix in {".html", ".css", ".js"}
    }
    assert files == {name for name in names if name.startswith(PAGES) and name.endswith((".html", ".css", ".js"))}

    drawn = alone(
        installed,
        "from starlette.routing import Route\n"
        "from steadyworker.dashboard import app\n"
        "print(sum(isinstance(route, Route) for route in app(ledger='sqlite:none.db').routes))",
    )
    assert drawn == "13"


def test_top_prints_its_tables_by_the_wheel_and_without_its_extra(installed: Path) -> None:
    printed = alone(
        installed,
        """
sys.modules["textual"] = None
from steadyworker.cli import verbs
from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import load
from pathlib import Path
options = load({"state_dir": "top"}, {}, Path.cwd())
open_ledger(options, create=True).bindings()
verbs(["top", "--once", "--state-dir", "top"])
""",
    )

    assert printed.splitlines()[0] == "RUNNING: 0 run, 0 wait, 0 dead"


def test_units_are_printed_by_the_wheel_alone(installed: Path) -> None:
    printed = alone(
        installed,
        """
sys.path.insert(0, ".")
open("own.py", "w").write("from steadyworker import Worker\\nclass Own(Worker[bytes]):\\n    queue = 'own'\\n    time_limit = 5\\n    def handle(self, job): ...\\n")
from steadyworker.cli import verbs
verbs(["deploy", "systemd", "own:Own"])
""",
    )

    assert "ExecStart=/opt/steadyworker/venv/bin/steadyworker run own:Own" in printed


def test_entry_points_are_those_of_the_project(
    installed: Path, pyproject: dict[str, dict[str, dict[str, dict[str, str]]]]
) -> None:
    (file,) = installed.glob("*.dist-info/entry_points.txt")
    found = configparser.ConfigParser(delimiters=("=",))
    found.read(file)

    assert {section: dict(found[section]) for section in found.sections()} == {
        "console_scripts": {"steadyworker": "steadyworker.cli:main"},
        **pyproject["project"]["entry-points"],
    }


def test_each_scheme_of_a_broker_url_has_its_adapter(
    pyproject: dict[str, dict[str, dict[str, dict[str, str]]]],
) -> None:
    """Written out, because users have these URLs in their settings: a scheme that is missing is a broker lost."""
    assert pyproject["project"]["entry-points"]["steadyworker.adapters"] == {
        "amqp": "steadyworker_rabbitmq",
        "amqps": "steadyworker_rabbitmq",
        "rocketmq": "steadyworker_rocketmq",
        "rocketmq+grpc": "steadyworker_rocketmq.grpc",
        "rocketmq+grpcs": "steadyworker_rocketmq.grpc",
        "sqlite": "steadyworker_sqlite",
        "stomp": "steadyworker_stomp",
        "stomp+ssl": "steadyworker_stomp",
    }


def test_every_entry_point_loads_from_the_wheel_alone(
    installed: Path, pyproject: dict[str, dict[str, dict[str, dict[str, str]]]]
) -> None:
    loaded = alone(
        installed,
        f"""
from importlib.metadata import distributions
(ours,) = (d for d in distributions(path=[{str(installed)!r}]))
for point in ours.entry_points:
    if point.group != "steadyworker.findings":  # it names packages, of which `explain` reads a file
        point.load()
        print(point.name)
""",
    )

    groups = [
        points for group, points in pyproject["project"]["entry-points"].items() if group != "steadyworker.findings"
    ]
    assert sorted(loaded.split()) == sorted(["steadyworker", *(name for group in groups for name in group)])


def test_every_public_name_comes_from_the_wheel_alone(installed: Path) -> None:
    found = alone(
        installed,
        """
import steadyworker
missing = [name for name in steadyworker.__all__ if not hasattr(steadyworker, name)]
print(steadyworker.__file__, missing)
""",
    )

    assert found == f"{installed / 'steadyworker' / '__init__.py'} []"


def test_wheel_carries_licence_and_readme(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    (licence,) = installed.glob("*.dist-info/licenses/LICENSE")

    assert metadata.read_text().endswith((REPOSITORY / "README.md").read_text())
    assert "Apache License" in licence.read_text()


def test_version_is_the_newest_of_the_changelog_or_not_released_yet(
    pyproject: dict[str, dict[str, dict[str, dict[str, str]]]],
) -> None:
    version = pyproject["project"]["version"]
    headings = [line for line in (REPOSITORY / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]

    assert headings[0] == "## [Unreleased]"
    assert len(headings) == 1 or headings[1].startswith(f"## [{version}]")


def test_lock_names_hashes_and_no_address() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    pins = [line for line in lock.splitlines() if "==" in line]

    assert "://" not in lock
    assert "--hash=sha256:" in lock
    assert all(line.endswith("\\") for line in pins)  # a pin's hashes are on the lines that follow
