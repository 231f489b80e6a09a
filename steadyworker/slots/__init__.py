"""
The slots in which handlers run; each slot has one run at a time, in a child process (the default) or in a thread.

| file | subject |
|---|---|
| `base.py` | the Protocol `Slot`, and the events that a slot sends to the runner |
| `process.py` | a slot that is a child process: the worker process's side, with its own thread |
| `child_state.py` | one child in a process slot: its present activity and its deadlines |
| `spawn.py` | one child process: start, send, receive, signal, kill, reap |
| `frames.py` | the frames that the two sides exchange |
| `guard.py` | the guard, which ends the children's sessions when the worker process dies |
| `guard_process.py` | the program of the guard process |
| `child.py` | the program of a child process |
| `dispositions.py` | the signal handlers of a child, restored after each job |
| `runs.py` | the runs of one slot: a record and limits for each run, and one table of runs |
| `thread.py` | a slot that is a thread |
| `execute.py` | the call of a handler |
"""
