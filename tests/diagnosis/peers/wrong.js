// Provokes amqplib and rascal: prints "## NAME" and then what the library says.
// Usage: AMQP_URL=amqp://… node wrong.js; NODE_PATH has the libraries.
'use strict';
const net = require('node:net');
const amqp = require('amqplib');
const rascal = require('rascal');

const url = process.env.AMQP_URL;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (name, error) => console.log(`## ${name}\n${(error && error.stack) || error}`);

/** Listen on a port of its own; `serve` gets each connection. */
const listen = (serve) => new Promise((resolve) => {
  const server = net.createServer((socket) => { socket.on('error', () => {}); serve(socket); });
  server.listen(0, '127.0.0.1', () => resolve(server));
});
const at = (server) => `amqp://127.0.0.1:${server.address().port}`;

/** A forwarder to the broker; `pair` has the two sockets of the newest connection. */
const forward = async () => {
  const made = {};
  const broker = new URL(url);
  made.server = await listen((near) => {
    const far = net.connect(Number(broker.port), '127.0.0.1');
    far.on('error', () => {});
    near.pipe(far);
    far.pipe(near);
    made.pair = [near, far];
  });
  made.url = url.replace(`:${broker.port}/`, `:${made.server.address().port}/`);
  return made;
};

/** Open a connection, and say the error that it ends with. */
const watched = async (name, where) => {
  const connection = await amqp.connect(where);
  const ended = new Promise((resolve) => {
    connection.once('error', (error) => { say(name, error); resolve(); });
    setTimeout(resolve, 8000).unref();
  });
  return { connection, ended };
};

const opening = async () => {
  for (const [name, answer] of [['closed', ''], ['http', 'HTTP/1.1 400 Bad Request\r\n\r\n'], ['header', 'AMQP\0\0\x09\x01']]) {
    const server = await listen((socket) => socket.once('data', () => socket.end(answer)));
    await amqp.connect(at(server)).catch((error) => say(`opening-${name}`, error));
    server.close();
  }
  await amqp.connect('amqp://127.0.0.1:1').catch((error) => say('refused', error));
  await amqp.connect('amqp://rabbit.invalid').catch((error) => say('no-host', error));
  await amqp.connect(url.replace(/:[^:@]*@/, ':wrong@')).catch((error) => say('password', error));
};

const channels = async () => {
  const connection = await amqp.connect(`${url}?channelMax=3`);
  connection.on('error', () => {});
  let channel = await connection.createChannel();
  channel.on('error', (error) => say('channel-error', error));
  await channel.checkQueue('nosuch').catch((error) => say('no-queue', error));
  try { channel.ack({ fields: { deliveryTag: 1 } }); } catch (error) { say('closed-channel', error); }
  channel = await connection.createConfirmChannel();
  for (const [name, publish] of [
    ['no-buffer', () => channel.publish('', 'x', 'text')],
    ['odd-header', () => channel.publish('', 'x', Buffer.from(''), { headers: { f: () => 1 } })],
    ['long-key', () => channel.publish('', 'x'.repeat(300), Buffer.from(''))],
  ]) try { publish(); } catch (error) { say(name, error); }
  await channel.assertQueue('node-short', { durable: true, arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' } });
  await new Promise((resolve) => {
    for (let i = 0; i < 2; i += 1) channel.sendToQueue('node-short', Buffer.from(''), {}, (error) => { if (error) { say('nacked', error); } if (i === 1) { resolve(); } });
  });
  try { for (let i = 0; i < 4; i += 1) await connection.createChannel(); } catch (error) { say('no-channels', error); }
  const waiting = channel.checkQueue('node-short').catch((error) => say('ended', error));
  await connection.close();
  await waiting;
  await connection.createChannel().catch((error) => say('closed-connection', error));
};

const losing = async () => {
  const way = await forward();
  let { connection, ended } = await watched('lost', way.url);
  way.pair[0].destroy();
  await ended;
  ({ connection, ended } = await watched('heartbeat', `${way.url}?heartbeat=1`));
  way.pair[1].unpipe(way.pair[0]);
  await ended;
  ({ connection, ended } = await watched('broken-frame', way.url));
  way.pair[0].write(Buffer.from([8, 0, 0, 0, 0, 0, 0, 0]));
  await ended;
  ({ connection, ended } = await watched('second-header', way.url));
  way.pair[0].write(Buffer.from('AMQP\0\0\x09\x01', 'latin1'));
  await ended;
  way.server.close();
};

const withRascal = async () => {
  try {
    await rascal.BrokerAsPromised.create(rascal.withDefaultConfig({ vhosts: { v: { connections: [{ url }], queues: ['q'] } },
      publications: { p: { vhost: 'v', queue: 'q', timeot: 5 } } }));
  } catch (error) { say('rascal-attribute', error); }
  const config = (where, more = {}) => rascal.withDefaultConfig({
    vhosts: { v: { connections: [{ url: where, retry: false }], queues: ['rascal-work'], publicationChannelPools: { confirmPool: { testOnBorrow: false } } } },
    publications: { p: { vhost: 'v', queue: 'rascal-work', timeout: 500 } },
    subscriptions: { s: { vhost: 'v', queue: 'rascal-work', redeliveries: { limit: 1, counter: 'mem' }, ...more } },
    redeliveries: { counters: { mem: { type: 'inMemory' } } },
  });
  await rascal.BrokerAsPromised.create(config('amqp://127.0.0.1:1')).catch((error) => say('rascal-refused', error));
  let broker = await rascal.BrokerAsPromised.create(config(url));
  broker.on('error', () => {});
  let subscription = await broker.subscribe('s');
  let taken = new Promise((resolve) => subscription.once('message', (message, content, ackOrNack) => {
    ackOrNack();
    ackOrNack(undefined, undefined, (error) => { if (error) { say('rascal-double-ack', error); } });
    setTimeout(resolve, 200);
  }));
  subscription.on('error', () => {});
  await broker.publish('p', 'one');
  await taken;
  subscription.on('cancelled', (error) => say('rascal-cancelled', error));
  const connection = await amqp.connect(url);
  await (await connection.createChannel()).deleteQueue('rascal-work');
  await pause(500);
  await connection.close();
  await broker.shutdown().catch(() => {});
  broker = await rascal.BrokerAsPromised.create(config(url));
  broker.on('error', () => {});
  subscription = await broker.subscribe('s');
  subscription.on('error', () => {});
  taken = new Promise((resolve) => subscription.on('redeliveries_exceeded', (error, message, ackOrNack) => { say('rascal-redeliveries', error); ackOrNack(); resolve(); }));
  subscription.on('message', (message, content, ackOrNack) => ackOrNack(new Error('again'), { strategy: 'nack', requeue: true }));
  await broker.publish('p', 'two');
  await Promise.race([taken, pause(5000)]);
  await broker.shutdown().catch(() => {});
};

(async () => {
  for (const part of [opening, channels, losing, withRascal]) await part();
  process.exit(0);
})().catch((error) => { say('failed', error); process.exit(1); });
