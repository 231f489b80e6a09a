"""
The worker process: this package wires, starts, watches and stops its parts.

| file | subject |
|---|---|
| `launch.py` | `run(...)`: from Worker classes to an exit code |
| `assemble.py` | creates every part and connects them |
| `job_services.py` | finds the services that jobs can call, and opens them when they are needed |
| `service.py` | the life of the process: signals, stages, the stop budget |
| `deadline.py` | ends the process if the main thread does not keep the stop budget |
| `monitor.py` | the watchdog report, the health probes and systemd |
| `stop_conditions.py` | the conditions that end the process without a signal |
| `watchdog.py` | finds the threads that no longer make turns |
| `checks.py` | the checks before the first message |
| `broker_recheck.py` | repeats the checks of the broker while the process runs |
| `dead_calls.py` | calls `on_dead` for jobs that were given up |
| `depth_meter.py` | measures what waits in the queues, for `steadyworker queues` and metrics |
| `repeating.py` | a thread that repeats one piece of work |
| `remedies.py` | finds the packages that have remedies for lines of the log |
| `health.py` | the HTTP server of `/livez`, `/readyz` and `/metrics` |
| `pool.py` | the threads for settlements that wait for the broker |
| `reload.py` | starts the process again when a file of its code changes (`run --reload`) |
| `owner_report.py` | the report that the process registers at each renewal |
| `fact_batch.py` | collects the events of links, and counts runs, between two renewals |
| `timed_ledger.py` | measures the calls of the ledger |
"""
