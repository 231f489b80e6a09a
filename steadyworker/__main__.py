"""`python -m steadyworker` is the `steadyworker` command."""

from steadyworker.cli import main

main()
