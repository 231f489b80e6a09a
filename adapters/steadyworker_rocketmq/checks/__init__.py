"""
The checks of brokers, proxies, topics and groups. Each finding has a remedy.

| module | subject |
|---|---|
| `findings` | all questions to name servers and brokers, in order |
| `brokers` | one broker: version, settings, transactions |
| `topics` | topics and consumer groups |
| `members` | the proxies' remoting ports |
| `commands` | the commands of `mqadmin` in the remedies |
| `versions` | the supported versions, and the weaknesses of old versions |

`steadyworker_rocketmq.grpc.checks` asks the proxies, because only that package may use the client library.
"""
