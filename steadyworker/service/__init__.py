"""
The worker process: wires the parts together, starts them, watches them and stops them.

| file | subject |
|---|---|
| `launch.py` | `run(...)`: from Worker classes to an exit code |
| `assemble.py` | the one file that knows every part, and connects them |
| `service.py` | the life of the process: signals, stages, the stop budget |
| `monitor.py`, `stop_conditions.py` | what is watched, and which finding ends the process |
| `watchdog.py` | evidence that each thread still moves |
| `checks.py` | what is verified before the first message |
| `health.py` | the HTTP server of `/livez`, `/readyz` and `/metrics` |
| `pool.py` | threads that carry out settlements that wait for a broker |
"""
