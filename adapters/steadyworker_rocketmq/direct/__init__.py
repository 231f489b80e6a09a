"""The driver for RocketMQ's brokers, by the remoting protocol and without a client library; its scheme is `rocketmq`."""
