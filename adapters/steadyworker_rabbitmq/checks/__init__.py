"""
The checks before the first message. They find limits, policies and missing permissions that would lose or repeat jobs.

| file | subject |
|---|---|
| `findings.py` | the findings about a broker and its queues; the texts of the findings are in `../findings.toml` |
| `risks.py` | the risks of a queue's arguments and policies for its messages |
| `limits.py` | delivery timeouts and delivery limits, by version |
| `probe.py` | facts that the broker reports over AMQP |
| `management.py` | facts that the management API reports |
| `queue_state.py` | the state of an existing queue, with the policy in force |
"""
