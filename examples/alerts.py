"""
Alerts for jobs that were given up: `on_dead` with Sentry, mail and a chat, to copy into your own Workers.

Each function needs a network, so each raises if its service is away; then a worker process repeats the call.
A repeated call can alert twice, so each alert carries the job's key.
"""

from __future__ import annotations

import json
import os
import smtplib
import urllib.request
from email.message import EmailMessage
from typing import Any

from steadyworker import Job, Reject, Worker


def text_of(job: Job[Any, Any], reason: str) -> str:
    """Return one line for people: what died, why, and what helps."""
    return f"{job.queue}: job {job.key} was given up: {reason} (steadyworker dead show {job.queue} {job.key})"


def to_sentry(job: Job[Any, Any], reason: str) -> None:
    """Report to Sentry (`pip install sentry-sdk`); the fingerprint makes one issue of a queue's dead jobs."""
    import sentry_sdk  # pyright: ignore[reportMissingImports] - imported here, so that only this call needs the package

    sentry_sdk.init(os.environ["SENTRY_DSN"])
    with sentry_sdk.new_scope() as scope:
        scope.set_tag("queue", job.queue)
        scope.set_tag("key", job.key)
        scope.fingerprint = ["dead-job", job.queue]
        sentry_sdk.capture_message(text_of(job, reason), level="error")
    sentry_sdk.flush(10)


def to_mail(job: Job[Any, Any], reason: str) -> None:
    """Send a mail through the server in SMTP_HOST."""
    mail = EmailMessage()
    mail["From"], mail["To"] = "worker@example.com", os.environ["ALERT_MAIL"]
    mail["Subject"] = f"Job {job.key} was given up"
    mail.set_content(text_of(job, reason))
    with smtplib.SMTP(os.environ["SMTP_HOST"], int(os.environ.get("SMTP_PORT", "25")), timeout=20) as server:
        server.send_message(mail)


def to_chat(job: Job[Any, Any], reason: str) -> None:
    """Post to an incoming webhook, as Slack, Mattermost and others have them."""
    body = json.dumps({"text": text_of(job, reason)}).encode()
    request = urllib.request.Request(  # noqa: S310 - the URL is your own setting
        os.environ["CHAT_WEBHOOK"], body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20):  # noqa: S310 - the URL is your own setting
        pass


class Reports(Worker[dict[str, str]]):
    """A Worker that alerts in all three ways; yours needs one."""

    queue = "reports"
    time_limit = 60

    def handle(self, job: Job[dict[str, str]]) -> None:
        """Stand for your job, which cannot succeed."""
        raise Reject(f"no template {job.payload['template']!r}")

    def on_dead(self, job: Job[dict[str, str]], reason: str) -> None:
        """Alert people."""
        to_chat(job, reason)
        to_mail(job, reason)
        to_sentry(job, reason)
