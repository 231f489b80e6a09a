"""The check of the origin, case by case as in Go 1.25's `CrossOriginProtection`, and the one case in which it is stricter."""

from __future__ import annotations

import pytest

from steadyworker.dashboard.csrf import refused_as_foreign

HOST = "ops.example.com:8080"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_method_that_changes_nothing_is_allowed(method: str) -> None:
    assert refused_as_foreign(method, {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, HOST) == ""


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": f"http://{HOST}"}, False),
        ({"origin": f"http://{HOST}"}, True),
        ({"origin": f"https://{HOST.upper()}"}, True),
        ({"origin": "http://ops.example.com"}, False),
        ({"origin": "http://ops.example.com.evil.example:8080"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://[bad"}, False),
        ({}, False),
    ],
)
def test_a_change_needs_the_origin_of_the_page(headers: dict[str, str], *, allowed: bool) -> None:
    assert (refused_as_foreign("POST", headers, HOST) == "") is allowed


def test_a_trusted_origin_is_allowed() -> None:
    headers = {"sec-fetch-site": "cross-site", "origin": "https://portal.example"}
    assert refused_as_foreign("POST", headers, HOST, trusted=["https://portal.example"]) == ""


def test_without_both_headers_only_a_token_in_a_header_of_its_own_helps() -> None:
    """Go allows this case, because only programs send it; a login that the browser remembers would then be enough."""
    assert refused_as_foreign("POST", {}, HOST).startswith("Expected the header Origin, Sec-Fetch-Site, or a token")
    assert refused_as_foreign("POST", {}, HOST, bearer=True) == ""
    assert refused_as_foreign("POST", {"origin": "https://evil.example"}, HOST, bearer=True) != ""
