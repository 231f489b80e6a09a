"""The certificate authorities that this system trusts, for clients that do not find them by themselves."""

from __future__ import annotations

import ssl
from pathlib import Path

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora, Amazon
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS
)


def trusted_authorities() -> str:
    """
    Return the file of the authorities that this system trusts, for libpq's `sslrootcert`.

    The value `system` of libpq is no alternative, and is returned only if no file is known.
    The OpenSSL in psycopg's binary wheels expects the file in a place that no system uses.
    """
    found = ssl.get_default_verify_paths().cafile
    return found or next((path for path in _BUNDLES if Path(path).exists()), "system")
