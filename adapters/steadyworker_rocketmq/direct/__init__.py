"""The driver that asks RocketMQ's brokers themselves (remoting), without a client library: the scheme `rocketmq`."""
