"""The verb `verify`, which the command line finds by the entry-point group `steadyworker.commands`."""

from __future__ import annotations

from steadyworker.cli.other_verbs import Verb

VERIFY = Verb("Re-read exported files, and compare them with their manifests.", "steadyworker.exports.cli.verify")
