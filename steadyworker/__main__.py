"""The entry point of `python -m steadyworker`, which is the `steadyworker` command."""

from steadyworker.cli import main

main()
