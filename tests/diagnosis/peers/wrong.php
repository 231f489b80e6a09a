<?php
// Provokes php-amqplib: prints "## NAME" and then what the library says.
// Usage: AMQP_URL=amqp://… php wrong.php
require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

$broker = parse_url(getenv('AMQP_URL'));

/** Say the exception that this ends with, as PHP's log has it. */
function fails(string $name, callable $act): void
{
    try {
        $act();
    } catch (\Throwable $error) {
        $text = sprintf("## %s\n%s: %s in %s:%d\n", $name, get_class($error), $error->getMessage(), $error->getFile(), $error->getLine());
        file_put_contents('php://stdout', $text);
    }
}

/** Open a connection, with other values where they are given. */
function connect(array $other = []): AMQPStreamConnection
{
    global $broker;
    return new AMQPStreamConnection(
        $other['host'] ?? '127.0.0.1', $other['port'] ?? $broker['port'], $broker['user'], $other['password'] ?? $broker['pass'], urldecode(substr($broker['path'], 1)),
        false, 'PLAIN', null, 'en_US', 3.0, $other['timeout'] ?? 3.0, null, false, $other['heartbeat'] ?? 0
    );
}

/** Start a process that answers so to each connection, and then closes it or keeps silent; returns its port and its id. */
function peer(string $answer, bool $closes = true): array
{
    $server = stream_socket_server('tcp://127.0.0.1:0');
    $port = (int) substr(strrchr(stream_socket_get_name($server, false), ':'), 1);
    $child = pcntl_fork();
    if ($child === 0) {
        $kept = [];
        while ($client = @stream_socket_accept($server, 10)) {
            fread($client, 8);
            fwrite($client, $answer);
            if ($closes) {
                fclose($client);
            } else {
                $kept[] = $client;
            }
        }
        posix_kill(getmypid(), SIGKILL);
    }
    fclose($server);
    return [$port, $child];
}

/** Start a process that forwards one connection to the broker, and whose end cuts it. */
function forwarder(): array
{
    global $broker;
    $server = stream_socket_server('tcp://127.0.0.1:0');
    $port = (int) substr(strrchr(stream_socket_get_name($server, false), ':'), 1);
    $child = pcntl_fork();
    if ($child === 0) {
        $near = stream_socket_accept($server, 10);
        $far = stream_socket_client("tcp://127.0.0.1:{$broker['port']}");
        while (true) {
            $ready = [$near, $far];
            $none = null;
            stream_select($ready, $none, $none, 10);
            foreach ($ready as $one) {
                fwrite($one === $near ? $far : $near, fread($one, 65536));
            }
        }
    }
    fclose($server);
    return [$port, $child];
}

fails('password', fn() => connect(['password' => 'wrong']));
fails('refused', fn() => connect(['port' => 1]));
fails('no-host', fn() => connect(['host' => 'rabbit.invalid']));
foreach (['closed' => '', 'header' => "AMQP\0\0\x09\x01", 'http' => "HTTP/1.1 400 Bad Request\r\n\r\n"] as $name => $answer) {
    [$port, $child] = peer($answer);
    fails("opening-$name", fn() => connect(['port' => $port]));
    posix_kill($child, SIGKILL);
}
[$port, $child] = peer('', false);
fails('silent', fn() => connect(['port' => $port, 'timeout' => 1.0]));
posix_kill($child, SIGKILL);

$channel = connect()->channel();
fails('no-queue', fn() => $channel->queue_declare('nosuch', true));
fails('closed-channel', fn() => $channel->queue_declare('nosuch', true));
$channel = connect()->channel();
$channel->queue_declare('php-work', false, true, false, false);
$channel->basic_consume('php-work', '', false, false, false, false, fn() => null);
fails('nothing-came', fn() => $channel->wait(null, false, 1));
fails('unknown-tag', function () use ($channel) {
    $channel->basic_ack(4711);
    $channel->wait(null, false, 3);
});
$channel = connect()->channel();
fails('long-key', fn() => $channel->basic_publish(new AMQPMessage('x'), '', str_repeat('x', 300)));
fails('odd-header', fn() => $channel->basic_publish(
    new AMQPMessage('x', ['application_headers' => new AMQPTable(['f' => fopen('php://memory', 'r')])]), '', 'php-work'
));

$connection = connect(['heartbeat' => 1, 'timeout' => 3.0]);
$channel = $connection->channel();
sleep(4); // as a long job does, which neither reads nor writes
fails('heartbeat', fn() => $channel->queue_declare('php-work', true));

[$port, $child] = forwarder();
$channel = connect(['port' => $port])->channel();
posix_kill($child, SIGKILL);
pcntl_waitpid($child, $status);
fails('cut', fn() => $channel->queue_declare('php-work', true));

[$port, $child] = forwarder();
$channel = connect(['port' => $port])->channel();
posix_kill($child, SIGKILL);
pcntl_waitpid($child, $status);
fails('cut-write', function () use ($channel) {
    for ($i = 0; $i < 20; $i++) {
        $channel->basic_publish(new AMQPMessage('x'), '', 'nosuch');
        usleep(50000);
    }
});

// Three children that share the parent's connection.
$channel = connect()->channel();
$children = [];
for ($i = 0; $i < 3; $i++) {
    $child = pcntl_fork();
    if ($child === 0) {
        fails("shared-$i", function () use ($channel) {
            for ($ends = microtime(true) + 3; microtime(true) < $ends;) {
                $channel->queue_declare('php-work', true);
            }
        });
        posix_kill(getmypid(), SIGKILL);
    }
    $children[] = $child;
}
foreach ($children as $child) {
    pcntl_waitpid($child, $status);
}
posix_kill(getmypid(), SIGKILL);
