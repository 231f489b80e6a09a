"""
The check that a request which changes something comes from this page, and from no other site.

It is the algorithm of Go 1.25 (`net/http.CrossOriginProtection`), which needs neither a cookie nor a hidden field.
It is stricter in one case: a request with neither of the two headers of browsers needs a token in its own header.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

SAFE = ("GET", "HEAD", "OPTIONS")
"""The methods that change nothing."""


def refused_as_foreign(
    method: str, headers: Mapping[str, str], host: str, *, trusted: Collection[str] = (), bearer: bool = False
) -> str:
    """
    Return why a request can come from another site; return an empty text if it cannot.

    `Sec-Fetch-Site` alone is not enough, because browsers send it only to HTTPS and to loopback names.

    Args:
        method: The method, such as `POST`.
        headers: The headers; their names are in lower case.
        host: The header `Host`, which the caller has checked against its list.
        trusted: The origins that may send requests, such as `https://ops.example.com`.
        bearer: True if the request has a valid token in `Authorization: Bearer`, which no browser adds by itself.
    """
    origin = headers.get("origin", "")
    site = headers.get("sec-fetch-site", "")
    if method in SAFE or site in ("same-origin", "none") or origin in trusted:
        return ""
    if site:
        return f"Expected a request from this page, got one from another site ({site}): use the page's own buttons."
    if origin:
        foreign = f"Expected the origin of this page ({host}), got {origin}: use the page's own buttons."
        return "" if _host_of(origin) == host.lower() else foreign
    missing = (
        "Expected the header Origin, Sec-Fetch-Site, or a token in Authorization: Bearer, got none of them: send one."
    )
    return "" if bearer else missing


def is_led_by_other(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another site leads to this address; without `Sec-Fetch-Site`, the referrer decides."""
    site, referrer = headers.get("sec-fetch-site", ""), headers.get("referer", "")
    if site or not referrer:
        return site == "cross-site"
    return _host_of(referrer) != headers.get("host", "").lower()


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
