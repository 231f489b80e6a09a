"""
The files for platforms that run worker processes, with a Worker's names and numbers; `steadyworker deploy` prints them.

The templates below `templates/` are the only source of these files: the templates contain each line, and the reason for each line.
`/deploy` of the repository has the files for the first page's Worker; a test compares these files with the command's output.
"""
