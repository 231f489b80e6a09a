import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's Java client, used wrongly in many ways; each is announced by a line `== NAME`, and followed by what it says.
 *
 * The arguments are a name server, a topic, and `send` (one message only) or nothing.
 */
public class RocketClient {
    private static String server;
    private static String topic;

    interface Attempt {
        Object run() throws Throwable;
    }

    public static void main(String[] arguments) throws Throwable {
        server = arguments[0];
        topic = arguments[1];
        DefaultMQProducer producer = producer("p-" + topic, server);
        Message plain = new Message(topic, "x".getBytes());
        if (arguments.length > 2) {
            producer.start();
            attempt("send", () -> producer.send(plain));
            System.exit(0);
        }
        attempt("not-started", () -> producer.send(plain));
        producer.start();
        attempt("shared-client-group", () -> start(producer("p-" + topic, server)));
        attempt("illegal-name", () -> producer.send(new Message("a b", "x".getBytes())));
        attempt("illegal-name", () -> start(producer("a b", server)));
        attempt("long-name", () -> producer.send(new Message("t".repeat(128), "x".getBytes())));
        attempt("system-topic", () -> producer.send(new Message("RMQ_SYS_TRANS_HALF_TOPIC", "x".getBytes())));
        attempt("empty-body", () -> producer.send(new Message(topic, new byte[0])));
        attempt("body-too-large", () -> producer.send(new Message(topic, new byte[5000000])));
        attempt("message-illegal", () -> producer.send(large()));
        attempt("default-group", () -> start(producer("DEFAULT_PRODUCER", server)));
        attempt("connect-failed", () -> start(producer("p2-" + topic, "127.0.0.1:1")).send(plain));
        attempt("connect-failed", () -> start(producer("p3-" + topic, null)).send(plain));
        attempt("no-listener", () -> start(consumer("c1-" + topic), null));
        attempt("no-transaction-listener", RocketClient::transaction);
        attempt("sql-filter-off", RocketClient::filtered);
        attempt("listener", () -> consumed("c2-" + topic, producer));
        attempt("illegal-retry-topic", () -> consumed("g".repeat(121), producer));
        System.exit(0); // some threads of the client outlive its shutdown
    }

    private static void attempt(String name, Attempt attempt) {
        System.out.println("== " + name);
        try {
            System.out.println(attempt.run());
        } catch (Throwable error) {
            error.printStackTrace(System.out);
        }
        System.out.flush();
    }

    private static DefaultMQProducer producer(String group, String nameServer) {
        DefaultMQProducer made = new DefaultMQProducer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(group);
        made.setRetryTimesWhenSendFailed(0);
        return made;
    }

    private static DefaultMQProducer start(DefaultMQProducer producer) throws Exception {
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String group) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(server);
        made.setInstanceName(group);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, "*");
        return made;
    }

    private static Object start(DefaultMQPushConsumer consumer, MessageListenerConcurrently listener) throws Exception {
        if (listener != null) {
            consumer.registerMessageListener(listener);
        }
        consumer.start();
        return "started";
    }

    private static Message large() {
        Message made = new Message(topic, "x".getBytes());
        made.putUserProperty("k", "v".repeat(33000));
        return made;
    }

    private static Object transaction() throws Exception {
        TransactionMQProducer made = new TransactionMQProducer("t-" + topic);
        made.setNamesrvAddr(server);
        made.start();
        return made.sendMessageInTransaction(new Message(topic, "x".getBytes()), null);
    }

    private static Object filtered() throws Exception {
        DefaultMQPushConsumer made = consumer("c3-" + topic);
        made.subscribe(topic, MessageSelector.bySql("a = 1"));
        return start(made, (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
    }

    /** Consumes two messages: the listener answers the first with null, and fails with the other one. */
    private static Object consumed(String group, DefaultMQProducer producer) throws Exception {
        for (int number = 0; number < 2; number++) {
            producer.send(new Message(topic, "x".getBytes()));
        }
        CountDownLatch left = new CountDownLatch(2);
        DefaultMQPushConsumer made = consumer(group);
        start(made, (messages, context) -> {
            left.countDown();
            if (left.getCount() > 0) {
                return null;
            }
            throw new IllegalStateException("the handler failed");
        });
        boolean done = left.await(60, TimeUnit.SECONDS);
        Thread.sleep(1000); // for the retries, which are sent after the listener
        made.shutdown();
        return done;
    }
}
