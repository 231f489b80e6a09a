"""Spark as a service of the worker process: its settings, their findings, and its start (entry point `spark`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from steadyworker.config.options import NAME, SECONDS, Kind, Option
from steadyworker.config.services import ServiceSettings
from steadyworker.errors import Finding
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import LOCAL, SparkSettings
from steadyworker.exports.spark.submitted import with_submitted

_PAIR = re.compile(r"[A-Za-z_][\w.-]*\s*=")


def _pairs(value: Any) -> dict[str, str]:
    """
    Return the pairs in a configuration file's table, or in a text `name=value,name=value`.

    A value can have commas (`spark.jars=/a.jar,/b.jar`).
    If the text after a comma is not a pair, it belongs to the value before the comma.
    """
    if isinstance(value, str):
        texts: list[str] = []
        for piece in filter(None, map(str.strip, value.split(","))):
            if _PAIR.match(piece) or not texts:
                texts.append(piece)
            else:
                texts[-1] += f",{piece}"
        pairs = [text.partition("=") for text in texts]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError("no equals sign")
        return {name.strip(): text.strip() for name, _, text in pairs}
    return {name: str(text) for name, text in msgspec.convert(value, dict[str, str | int | float]).items()}


OPTIONS: tuple[Option, ...] = (
    Option(
        "spark_master",
        NAME,
        LOCAL,
        "Spark's master for heavy exports, or a Spark Connect server (sc://host:15002); unless it is local[…], the executors must share the exports' file system, or spark_stage.",
    ),
    Option(
        "spark_stage",
        NAME,
        "",
        "A folder for Spark's sorted parts that the executors and the worker process share: s3a://bucket/tmp, or a path; by default, beside each export.",
    ),
    Option(
        "spark_conf",
        Kind("NAME=VALUE,...", "a table of settings, or name=value,name=value", _pairs),
        {},
        "Settings of Spark, like spark.driver.memory=2g; they replace SteadyWorker's defaults.",
    ),
    Option(
        "spark_stuck_after",
        SECONDS,
        60.0,
        "Restart a Spark export after this time without progress; a cluster, or a process of Spark that computes, gets at most ten times as long.",
    ),
)


def findings(settings: ServiceSettings) -> Iterator[Finding]:
    """Yield problems with a Spark Connect server."""
    yield from _settings(settings).findings()


def open_service(settings: ServiceSettings) -> SparkService:
    """Return the service, which removes the folders of dead hosts now, and starts a Spark host at its first call."""
    service = SparkService(_settings(settings), clock=settings.clock)
    service.reap()
    return service


def _settings(given: ServiceSettings) -> SparkSettings:
    values = given.values
    settings = SparkSettings(
        folder=given.folder,
        master=values["spark_master"],
        stage=values["spark_stage"],
        conf=dict(values["spark_conf"]),
        stuck_after=values["spark_stuck_after"],
    )
    return with_submitted(settings, os.environ)
