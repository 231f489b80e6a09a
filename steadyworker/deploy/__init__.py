"""
Files for platforms that run worker processes, and the check of such files.

`numbers.py` computes every duration that a platform needs from a Worker and its settings.
Each platform has one module beside it, which fills templates with these numbers.
`steadyworker deploy` prints the result, and `steadyworker check --deployed FILE` compares a file with the numbers.
"""
