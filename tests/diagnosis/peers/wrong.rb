# Provokes bunny: prints "## NAME" and then what the library says.
# Usage: AMQP_URL=amqp://… ruby wrong.rb
require 'bunny'
require 'logger'
require 'socket'

URL = ENV.fetch('AMQP_URL')
BROKER = URI.parse(URL)
Thread.report_on_exception = false
$stdout.sync = true

def log
  Logger.new($stdout, level: Logger::WARN)
end

# What bunny's own threads raise does not reach the main thread.
class Quiet
  def raise(*); end
end

def connect(url = URL, **options)
  defaults = { automatically_recover: false, session_error_handler: Quiet.new, continuation_timeout: 2000 }
  Bunny.new(url, logger: log, **defaults, **options).tap(&:start)
end

def fails(name)
  puts "## #{name}"
  yield
rescue Exception => error
  puts "#{error.class}: #{error.message}"
end

# A port whose peer answers so to each connection, and then closes it or keeps silent.
def peer(answer, closes: true)
  server = TCPServer.new('127.0.0.1', 0)
  Thread.new do
    kept = []
    loop do
      client = server.accept
      client.readpartial(8)
      client.write(answer)
      closes ? client.close : kept << client
    end
  end
  "amqp://127.0.0.1:#{server.addr[1]}"
end

# A forwarder to the broker; PAIRS has the two sockets of each connection, and with $deaf nothing comes back.
PAIRS = []
$deaf = false
def cut
  PAIRS.last.each { |one| one.shutdown rescue nil }
end

def forward
  server = TCPServer.new('127.0.0.1', 0)
  Thread.new do
    loop do
      near = server.accept
      far = TCPSocket.new('127.0.0.1', BROKER.port)
      PAIRS << [near, far]
      [[near, far, false], [far, near, true]].each do |from, to, back|
        Thread.new do
          loop { (data = from.readpartial(65_536)) && (back && $deaf ? nil : to.write(data)) }
        rescue StandardError
          to.close
        end
      end
    end
  end
  URL.sub(":#{BROKER.port}", ":#{server.addr[1]}")
end

fails('refused') { connect('amqp://127.0.0.1:1') }
fails('no-host') { connect('amqp://rabbit.invalid') }
fails('password') { connect(URL.sub(/:[^:@]*@/, ':wrong@')) }
fails('opening-closed') { connect(peer('')) }
fails('opening-http') { connect(peer("HTTP/1.1 400 Bad Request\r\n\r\n")) }
fails('silent') { connect(peer('', closes: false), connection_timeout: 1, read_timeout: 1) }

channel = connect.create_channel
fails('no-queue') { channel.queue_declare('nosuch', passive: true) }
fails('closed-channel') { channel.prefetch(1) }
session = connect
session.close
fails('closed-connection') { session.create_channel }
channel = connect.create_channel
fails('long-key') { channel.basic_publish('', '', 'x' * 300) }

way = forward
session = connect(way)
channel = session.create_channel
fails('lost') { cut; sleep 1; channel.prefetch(1) }
channel = connect(way, continuation_timeout: 800).create_channel
fails('no-answer') { $deaf = true; channel.prefetch(1) }
$deaf = false
session = connect(way, heartbeat: 1)
fails('heartbeat') { $deaf = true; sleep 6 }
$deaf = false
session = connect(way)
fails('broken-frame') { PAIRS.last[0].write("\x08\0\0\0\0\0\0\0"); sleep 1 }
session = connect(way, automatically_recover: true, network_recovery_interval: 0.3, recovery_attempts: 1)
fails('recovers') { cut; sleep 2 }
exit!
