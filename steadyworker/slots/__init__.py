"""
The slots in which handlers run; each slot has one run at a time, in a child process (the default) or in a thread.

| file | subject |
|---|---|
| `base.py` | the Protocols `Slot` and `SlotPoll`, and the events that a slot sends to the runner |
| `process.py` | a slot that is a child process: the worker process's side, in the runner's thread |
| `child_process.py` | one child of a process slot: its frames, its run, its deadlines and its end |
| `spawn.py` | the start of a child process |
| `frames.py` | the frames that the two sides exchange |
| `guard.py` | the guard, which ends the children's sessions when the worker process dies |
| `guard_process.py` | the program of the guard process |
| `child.py` | the program of a child process |
| `dispositions.py` | the signal handlers of a child, restored after each job |
| `runs.py` | a run of one slot, with its limits |
| `thread.py` | a slot that is a thread |
| `execute.py` | the call of a handler |
| `tracebacks.py` | the traceback of a run, as text for people |
"""
