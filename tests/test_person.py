"""Who acts: the user of this machine, whatever the environment claims."""

from __future__ import annotations

import os
import pwd
import socket

import pytest

from steadyworker.system.person import who

HOST = socket.gethostname()


def test_a_person_is_a_user_at_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("LOGNAME", "another")
    assert who() == f"{pwd.getpwuid(os.getuid()).pw_name}@{HOST}"


@pytest.mark.parametrize(("uid", "name"), [(0, "ada"), (pwd.getpwnam("nobody").pw_uid, "nobody")])
def test_behind_sudo_it_is_the_caller(monkeypatch: pytest.MonkeyPatch, uid: int, name: str) -> None:
    """Only root can come from sudo."""
    monkeypatch.setenv("SUDO_USER", "ada")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert who() == f"{name}@{HOST}"


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    assert who() == f"987654@{HOST}"
