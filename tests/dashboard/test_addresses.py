"""The address of a job: any name survives it, and no part of it means anything else on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.dashboard.addresses import job_of, job_path
from steadyworker.ledger.job_id import JobId

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


@given(names, names, names)
def test_each_name_is_read_as_it_was_written(namespace: str, queue: str, key: str) -> None:
    path = job_path(namespace, queue, key)
    assert job_of(path.removeprefix("/job/")) == JobId(namespace, queue, key)
    assert set(path) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@:~/")


@pytest.mark.parametrize(
    ("id", "path"),
    [
        (("rabbit@mq:/", "exports", "export-m-17"), "/job/rabbit@mq:~2F/exports/export-m-17"),
        (("shop", "exports", ".."), "/job/shop/exports/~2E~2E"),
        (("shop", "exports", "a~b c"), "/job/shop/exports/a~7Eb~20c"),
    ],
)
def test_a_plain_name_stays_readable(id: tuple[str, str, str], path: str) -> None:
    assert job_path(*id) == path


@pytest.mark.parametrize("rest", ["", "a", "a/b", "a/b/c/d", "a//c", "a/b/~FF", "a/b/ü", f"a/b/{'k' * 3001}"])
def test_another_path_names_no_job(rest: str) -> None:
    assert job_of(rest) is None
