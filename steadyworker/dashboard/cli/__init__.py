"""The verb `dashboard`, which the command line finds by the entry-point group `steadyworker.commands`."""

from __future__ import annotations

from steadyworker.cli.other_verbs import Verb

DASHBOARD = Verb("Serve a page with jobs, queues and worker processes.", "steadyworker.dashboard.cli.dashboard")
