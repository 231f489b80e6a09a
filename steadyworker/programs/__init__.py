"""
Programs as jobs: one message is one run of a command (`steadyworker exec`).

| file | subject |
|---|---|
| `command.py` | the command line of the jobs, its placeholders, and its way from `steadyworker exec` to the slots |
| `worker.py` | the Worker whose handler runs the command |
| `process.py` | one run of the command: start, wait, terminate, and the end of its process group |
| `pipes.py` | what the command writes: output lines, and reports on descriptor 3 |
| `codes.py` | the meaning of the exit codes |
"""
