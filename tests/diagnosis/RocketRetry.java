import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A message of a transaction, which is committed, and a consumer that fails with it.
 *
 * The arguments are a name server, a topic and a consumer group; it ends when its standard input does.
 */
public class RocketRetry {
    public static void main(String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("p-" + arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        Message message = new Message(arguments[1], "the body of a message".getBytes());
        message.putUserProperty("token", "s3cret");
        producer.sendMessageInTransaction(message, null);

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        MessageListenerConcurrently fails = (messages, context) -> {
            throw new IllegalStateException("the handler failed");
        };
        consumer.registerMessageListener(fails);
        consumer.start();

        System.in.read();
        consumer.shutdown();
        producer.shutdown();
        System.exit(0); // some threads of the client outlive its shutdown
    }
}
