"""
Where handlers run: one run at a time in each slot, in a child process (the default) or in a thread.

Which file is what::

    process.py ── the worker process's side: one slot, its thread, child after child
    tenure.py  ── one child's time in the slot: its run, and what is due for both
    spawn.py   ── one child process: start, talk, signal, kill, reap
    frames.py  ── what the two sides say to each other
    child.py   ── all that runs inside a child process
    thread.py  ── a slot that is a thread
    execute.py ── the one place where a handler is called
    limits.py  ── time limit and stall limit, as arithmetic
"""
