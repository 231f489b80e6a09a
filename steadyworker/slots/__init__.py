"""
The slots in which handlers run: one run at a time in each, in a child process (the default) or in a thread.

| file | subject |
|---|---|
| `base.py` | the Protocol `Slot`, and the events that a slot sends to the runner |
| `process.py` | a slot that is a child process: the worker process's side, with a thread of its own |
| `child_state.py` | one child: its phase, its run, and what is due for both |
| `spare.py` | the start of a child process, and one child in reserve |
| `spawn.py` | one child process: send, receive, signal, kill, reap |
| `frames.py` | the frames that the two sides exchange |
| `guard.py` | the guard, which ends the children's sessions when the worker process dies |
| `guard_process.py` | all that runs inside the guard process |
| `child.py` | all that runs inside a child process |
| `dispositions.py` | what a child does with signals, kept from one job to the next |
| `thread.py` | a slot that is a thread |
| `execute.py` | the one place where a handler is called |
| `limits.py` | time limit and stall limit, as arithmetic |
"""
