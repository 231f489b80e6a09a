"""The person who acts."""

from __future__ import annotations

import os
import pwd
import socket


def acting_person() -> str:
    """Return the user of this process and its host, as `user@host`; a user without a name has a number."""
    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:  # a container can run under a number that its user table lacks
        user = str(number)
    return f"{user}@{socket.gethostname()}"
