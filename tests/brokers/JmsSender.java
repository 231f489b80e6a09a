import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import java.util.List;
import org.apache.activemq.ActiveMQConnectionFactory;

/** Sends one JMS message of each kind to a queue of Classic, in the order of the list; the arguments are URL, user, password and queue. */
public class JmsSender {
    public static void main(String[] arguments) throws Exception {
        var factory = new ActiveMQConnectionFactory(arguments[1], arguments[2], arguments[0]);
        try (Connection connection = factory.createConnection()) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MapMessage map = session.createMapMessage();
            map.setString("merchant", "harbour");
            StreamMessage stream = session.createStreamMessage();
            stream.writeString("harbour");
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes("harbour".getBytes());
            MessageProducer producer = session.createProducer(session.createQueue(arguments[3]));
            for (Message message : List.of(map, stream, session.createObjectMessage("harbour"), session.createMessage(),
                    session.createTextMessage("harbour"), bytes, session.createBytesMessage())) {
                producer.send(message);
            }
        }
    }
}
