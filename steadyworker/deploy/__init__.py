"""
The files for platforms that run worker processes, with a Worker's names and numbers; `steadyworker deploy` prints them.

The templates below `templates/` are the one source of these files: they contain each line, and the reason for each line.
`/deploy` of the repository has the files for the first page's Worker; a test compares them with what the command prints.
"""
