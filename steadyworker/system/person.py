"""The person who runs a command, for the log of actions."""

from __future__ import annotations

import os
import pwd
import socket


def who() -> str:
    """
    Return the person who runs this process, as `user@host`.

    Under `sudo`, the user is the one who called `sudo`.
    A user id without an entry in the system's list of users is a number, as is common in containers.
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
