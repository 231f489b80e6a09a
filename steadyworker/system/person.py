"""The person who runs a command, for the log of actions."""

from __future__ import annotations

import os
import pwd
import socket


def who() -> str:
    """
    Return the person who runs this process, as `user@host`.

    Under `sudo`, the user is the one who called `sudo`.
    If the system's list of users has no entry for the user id, as is common in containers, the name is this number.
    The value is for people: a user can pretend to be another.
    """
    uid = os.getuid()
    caller = os.environ.get("SUDO_USER") if uid == 0 else None
    return f"{caller or _name_of(uid)}@{socket.gethostname()}"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
