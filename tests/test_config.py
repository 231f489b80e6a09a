"""One rule for every setting, and errors that teach."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from steadyworker.config.resolve import Options, handed_on, load
from steadyworker.config.services import all_options
from steadyworker.errors import ConfigError
from steadyworker.units import parse_seconds

HOME = {"HOME": "/home/joe"}

# One value for each setting: as text, as TOML, and as it is read.
SAMPLES: dict[str, tuple[str, str, Any]] = {
    "broker": ("sqlite:/b.db", '"sqlite:/b.db"', "sqlite:/b.db"),
    "ledger": ("sqlite:/l.db", '"sqlite:/l.db"', "sqlite:/l.db"),
    "namespace": ("prod", '"prod"', "prod"),
    "state_dir": ("/state", '"/state"', Path("/state")),
    "stop_within": ("2h", "7200", 7200.0),
    "max_jobs": ("3", "3", 3),
    "max_rss": ("2 GiB", '"2 GiB"', 2 << 30),
    "idle_exit": ("90", '"1m 30s"', 90.0),
    "give_up_after": ("15m", "900.0", 900.0),
    "orphan_after": ("10m", "600.0", 600.0),
    "ledger_reach": ("host", '"host"', "host"),
    "ledger_limit": ("2 GiB", '"2 GiB"', 2 << 30),
    "on_ledger_loss": ("finish", '"finish"', "finish"),
    "topology": ("verify", '"verify"', "verify"),
    "delays": ("1,5s,1m", '[1, "5s", 60]', (1.0, 5.0, 60.0)),
    "health": ("8080", "8080", "127.0.0.1:8080"),
    "log_format": ("JSON", '"json"', "json"),
    "log_level": ("debug", '"debug"', "debug"),
    "concurrency": ("4", "4", 4),
    # Of a service; it begins with the service's name.
    "spark_master": ("yarn", '"yarn"', "yarn"),
    "spark_stage": ("s3a://bucket/tmp", '"s3a://bucket/tmp"', "s3a://bucket/tmp"),
    "spark_conf": ("spark.driver.memory=2g", '{ "spark.driver.memory" = "2g" }', {"spark.driver.memory": "2g"}),
    "spark_stuck_after": ("10 min", "600", 600.0),
}


def read(cwd: Path, environ: dict[str, str] | None = None, **arguments: Any) -> Options:
    return load(arguments, HOME | (environ or {}), cwd)


def refused(cwd: Path, environ: dict[str, str] | None = None, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(cwd, environ, **arguments)
    assert caught.value.findings
    assert all(finding.remedy for finding in caught.value.findings)
    return str(caught.value)


def test_every_setting_has_a_sample_here() -> None:
    assert [option.name for option in all_options()] == list(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_flag_outranks_the_environment_which_outranks_the_file_which_outranks_the_default(
    name: str, tmp_path: Path
) -> None:
    text, toml, expected = SAMPLES[name]
    variable = f"STEADYWORKER_{name.upper()}"
    file = tmp_path / "steadyworker.toml"

    flag = load({name: text}, HOME | {variable: "canary"}, tmp_path)
    environment = read(tmp_path, {variable: text})
    file.write_text(f"{name} = {toml}\n")
    written = read(tmp_path)

    (option,) = (each for each in all_options() if each.name == name)
    for options in (flag, environment, written):
        assert options.value(option) == expected
    assert flag.origins[name] == "--" + name.replace("_", "-")
    assert environment.origins[name] == variable
    assert written.origins[name] == f"{name} in {file}"


def test_defaults(tmp_path: Path) -> None:
    options = read(tmp_path)
    assert options.broker == "sqlite:/home/joe/.local/state/steadyworker/broker.db"
    assert options.ledger == "sqlite:/home/joe/.local/state/steadyworker/ledger.db"
    assert (options.stop_within, options.topology, options.log_format) == (28.0, "declare", "auto")
    assert options.delays == (1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
    assert set(options.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("environ", "expected", "origin"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x"}, "/var/lib/a", "$STATE_DIRECTORY"),
        ({"XDG_STATE_HOME": "/x"}, "/x/steadyworker", "$XDG_STATE_HOME"),
        ({"XDG_STATE_HOME": "relative"}, "/home/joe/.local/state/steadyworker", "default"),
    ],
)
def test_the_state_directory(environ: dict[str, str], expected: str, origin: str, tmp_path: Path) -> None:
    options = read(tmp_path, environ)
    assert (str(options.state_dir), options.origins["state_dir"]) == (expected, origin)
    assert options.broker == f"sqlite:{expected}/broker.db"


def test_none_and_an_empty_variable_are_not_given(tmp_path: Path) -> None:
    options = read(tmp_path, {"STEADYWORKER_HEALTH": ""}, broker=None)
    assert (options.health, options.origins["health"], options.origins["broker"]) == (None, "default", "default")


def test_a_file_may_hold_the_value_and_is_read_again(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sqlite:/one.db\n")
    (tmp_path / "steadyworker.toml").write_text('ledger_file = "secret"\n')
    options = read(tmp_path, {"STEADYWORKER_BROKER_FILE": str(secret)})
    assert (options.broker, options.ledger) == ("sqlite:/one.db", "sqlite:/one.db")
    assert options.origins["broker"] == "STEADYWORKER_BROKER_FILE"
    secret.write_text("sqlite:/two.db\n")
    assert (options.fresh("broker"), options.fresh("ledger")) == ("sqlite:/two.db", "sqlite:/two.db")
    secret.unlink()
    with pytest.raises(ConfigError, match=r"STEADYWORKER_BROKER_FILE .*cannot be read"):
        options.fresh("broker")
    assert read(tmp_path, broker="sqlite:/x", ledger="sqlite:/y").fresh("broker") == "sqlite:/x"


def test_what_a_file_holds_is_in_no_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    message = refused(tmp_path, max_jobs_file=str(tmp_path / "secret"))
    assert message.startswith(
        "Expected a whole number of at least 1 for --max-jobs-file, got the content of that file."
    )


def test_a_value_and_a_file_for_it_are_one_too_many(tmp_path: Path) -> None:
    assert "--broker and --broker-file, got both" in refused(tmp_path, broker="sqlite:/b", broker_file="/b")


@pytest.mark.parametrize(
    ("environ", "arguments", "toml", "near"),
    [
        ({}, {"topolgy": "verify"}, "", "did you mean --topology?"),
        ({"STEADYWORKER_BROKR": "x"}, {}, "", "did you mean STEADYWORKER_BROKER?"),
        ({"STEADYWORKER_BROKER_FIL": "x"}, {}, "", "did you mean STEADYWORKER_BROKER_FILE?"),
        ({}, {}, "stop-within = 3", "did you mean stop_within in"),
        ({}, {"log_level": "inf"}, "", "did you mean info?"),
        ({}, {}, "[worker.Exports]\nconcurrency = 2", "did you mean [workers.Exports]?"),
        ({}, {}, "[Exports]\nconcurrency = 2", "did you mean [workers.Exports]?"),
    ],
)
def test_an_unknown_key_names_the_near_match(
    environ: dict[str, str], arguments: dict[str, Any], toml: str, near: str, tmp_path: Path
) -> None:
    (tmp_path / "steadyworker.toml").write_text(toml)
    assert near in refused(tmp_path, environ, **arguments)


def test_everything_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, {"STEADYWORKER_MAX_RSS": "2 GiBB", "STEADYWORKER_NONSENSE": "1"}, max_jobs=0)
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_within", "0"),
        ("stop_within", "nan"),
        ("idle_exit", "-1"),
        ("idle_exit", "inf"),
        ("idle_exit", "5 s or so"),
        ("idle_exit", 1e10),
        ("stop_within", "99999999d"),
        ("state_dir", "a\0b"),
        ("state_dir", ""),
        ("max_jobs", "1.5"),
        ("max_jobs", True),
        ("max_rss", 0),
        ("delays", ""),
        ("delays", "5,1"),
        ("delays", [0, 1]),
        ("health", "here"),
        ("health", "host:99999"),
        ("broker", ""),
        ("broker", 5),
        ("broker", "sqlite:a\0b"),
        ("ledger_reach", "fleet"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    message = refused(tmp_path, **{name: value})
    assert message.startswith("Expected ")
    assert f"for --{name.replace('_', '-')}, got {value!r}" in message


def test_a_password_is_in_no_error(tmp_path: Path) -> None:
    assert "canary" not in refused(tmp_path, health="amqp://joe:canary@h")


def test_variables_of_tests_and_of_kubernetes_are_not_ours(tmp_path: Path) -> None:
    """A Service named steadyworker puts these into every container of its namespace."""
    links = {
        "STEADYWORKER_SERVICE_HOST": "10.0.0.1",
        "STEADYWORKER_SERVICE_PORT_HTTP": "80",
        "STEADYWORKER_PORT": "tcp://10.0.0.1:80",
        "STEADYWORKER_PORT_80_TCP_ADDR": "10.0.0.1",
        "STEADYWORKER_HEALTH_SERVICE_HOST": "10.0.0.1",
    }
    read(tmp_path, links | {"KUBERNETES_SERVICE_HOST": "10.0.0.0", "STEADYWORKER_TEST_BROKER": "x"})
    assert len(refused(tmp_path, links).splitlines()) == len(links)


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text("max_jobs = 7\nbroker_file = 'url'", encoding="utf-8-sig")
    (tmp_path / "url").write_text("sqlite:b.db\n", encoding="utf-8-sig")
    assert (read(tmp_path).max_jobs, read(tmp_path).broker) == (7, "sqlite:b.db")


def test_the_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("max_jobs = 7")
    assert load({}, HOME, tmp_path, Path("other.toml")).max_jobs == 7
    assert read(tmp_path, {"STEADYWORKER_CONFIG": "other.toml"}).max_jobs == 7
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        load({}, HOME, tmp_path, Path("gone.toml"))


@pytest.mark.parametrize("text", ["max_jobs = ", "\x00", "[workers]\nA = 1"])
def test_a_broken_file_is_reported_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text(text)
    assert "steadyworker.toml" in refused(tmp_path)


def test_workers_have_tables_of_their_own(tmp_path: Path) -> None:
    toml = '[workers.Exports]\ntime_limit = "3h"\nconcurrency = 2\nmemory_limit = "1 GiB"\n'
    (tmp_path / "steadyworker.toml").write_text(toml)
    assert read(tmp_path).workers == {"Exports": {"time_limit": 10800.0, "concurrency": 2, "memory_limit": "1 GiB"}}
    (tmp_path / "steadyworker.toml").write_text('[workers.Exports]\ntime_limit = "long"')
    assert "time_limit of [workers.Exports]" in refused(tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("28", 28),
        (28, 28),
        ("1.5", 1.5),
        ("90s", 90),
        ("1h30m", 5400),
        ("1min 30s", 90),
        ("250 ms", 0.25),
        ("2 d", 172800),
    ],
)
def test_durations(value: object, expected: float) -> None:
    assert parse_seconds(value) == expected
    assert parse_seconds(timedelta(seconds=expected)) == expected


@pytest.mark.parametrize(
    ("given", "expected"), [("0.0.0.0:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80"), (":80", "127.0.0.1:80")]
)
def test_addresses(given: str, expected: str, tmp_path: Path) -> None:
    assert read(tmp_path, health=given).health == expected


@pytest.mark.parametrize(
    "client", [{}, {"STEADYWORKER_BROKER": "sqlite:env.db"}, {"STEADYWORKER_BROKER_FILE": "env.url"}]
)
def test_what_was_given_as_an_argument_is_handed_on_to_the_clients_of_handlers(
    tmp_path: Path, client: dict[str, str]
) -> None:
    """A file stays a file, so that a password is in no environment, and a rotated one is used."""
    (tmp_path / "broker.url").write_text("amqp://shop:hunter2@mq/")
    (tmp_path / "env.url").write_text("sqlite:env-file.db")
    (tmp_path / "my.toml").write_text('namespace = "shop"\n[workers.Exports]\nconcurrency = 2\n')
    given = {
        "broker_file": "broker.url",
        "state_dir": "here",
        "delays": "2,1h,86400.5,90061.25,1209601",
        "health": "8080",
        "max_jobs": 1,
    }
    options = load(given, client, tmp_path, Path("my.toml"))

    handed = handed_on(options, tmp_path, Path("my.toml"))

    assert "hunter2" not in str(handed)
    assert not {"STEADYWORKER_HEALTH", "STEADYWORKER_MAX_JOBS"} & set(handed)
    environ = {name: value for name, value in (client | handed).items() if value is not None}
    theirs = load({}, environ, tmp_path / "elsewhere")
    names = ("broker", "ledger", "namespace", "state_dir", "topology", "delays", "workers")
    assert [getattr(theirs, name) for name in names] == [getattr(options, name) for name in names]
    assert theirs.files["broker"] == tmp_path / "broker.url"


def test_a_value_of_spark_s_can_have_commas(tmp_path: Path) -> None:
    def conf(text: str) -> dict[str, str]:
        return dict(read(tmp_path, spark_conf=text).of_services["spark_conf"])

    jars = {"spark.jars": "/a.jar,/b=c.jar", "spark.driver.memory": "2g"}
    assert conf("spark.jars=/a.jar, /b=c.jar,spark.driver.memory=2g") == jars
    assert conf("spark.driver.memory = 2g,,spark.jars=/a.jar,/b=c.jar,") == jars
    assert conf("spark.x=1,y=2") == {"spark.x": "1", "y": "2"}, "a wrong name is no part of a value"
    assert "name=value" in refused(tmp_path, spark_conf="/a.jar,spark.x=1")
