"""
Checks before the first message. They find limits, policies and missing permissions that would lose or repeat a job.

| file | subject |
|---|---|
| `findings.py` | every finding for a broker, with its remedy |
| `risks.py` | what a queue's arguments and policies can do to its messages |
| `limits.py` | delivery timeouts and delivery limits, by version |
| `probe.py` | what the broker reports over AMQP |
| `management.py` | what the management API reports |
| `queue_state.py` | a queue as it is, with the policy in force |
"""
