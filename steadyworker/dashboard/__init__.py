"""
The page: what runs, what waits, which worker processes live, and the story of each job, as HTML from one process.

`steadyworker dashboard` serves the page beside a ledger; `app` returns the same as an ASGI application, to mount in an application of yours:

    from steadyworker.dashboard import app

    site.mount("/jobs", app(ledger="postgresql://…", hosts=["ops.example.com"], behind_login=True))

A page only reads the ledger, by a bounded number of queries, and waits for no broker.
If the settings name the broker, the process asks it in the background what waits in its queues.
Only actions write, and only with `--allow-actions` and for people who have logged in: they are the actions of the command line.
It needs the extra `dashboard`: Starlette, Jinja2 and uvicorn.
These three are small, widely used and typed; a web framework with forms, sessions and models has nothing to do here.

| file | subject |
|---|---|
| `access.py` | which requests are allowed, and the headers of each response |
| `csrf.py` | the check that a request comes from this page |
| `application.py` | the addresses, and the way from a request to a page |
| `reader.py` | reads of the ledger: one for many viewers, and the last known state while the ledger is away |
| `asking.py` | questions to the broker, in the background |
| `addresses.py` | the address of a job |
| `forms.py` | the actions that a page offers, and the seals of their forms |
| `chosen.py` | the jobs that a person has chosen by a filter |
| `doing.py` | the actions |
| `bulk.py` | an action on many jobs, in the background |
| `failures.py` | failed jobs in groups of one cause |
| `running.py`, `queues.py`, `workers.py`, `warned.py`, `job.py` | the content of each page, as values |
| `exported.py` | the export of a job, as the ledger has it |
| `job_line.py` | a running or waiting job as a row |
| `estimates.py` | the time that is left, and the durations of runs, as honest ranges |
| `notices.py` | what needs a person, in words |
| `grouped.py` | many notices of one kind as one |
| `causes.py` | what many failed jobs have in common |
| `paging.py` | the parts of long lists |
| `pictures.py` | the connections of a worker process, and those under the runs of a job, as pictures |
| `serving.py` | the server: its limits for slow clients and for connections |
| `cli/` | the verb `dashboard` |
| `top/` | the verb `top`: the same tables in a terminal |

The core imports nothing of this package; the command line finds the verb by its entry point.
Without actions, the page imports no runner, so it can never run, settle or decide a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.dashboard.application import app as app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Import `app` at its first use, because `steadyworker --help` imports this package, and must stay fast."""
    if name == "app":
        from steadyworker.dashboard.application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
