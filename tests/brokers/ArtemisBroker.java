import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.activemq.artemis.core.config.impl.SecurityConfiguration;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;
import org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule;

/** ActiveMQ Artemis as artemis.py wants it; the arguments are its broker.xml and a file of properties with the logins. */
public class ArtemisBroker {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[1]))) {
            settings.load(file);
        }
        SecurityConfiguration logins = new SecurityConfiguration();
        for (String role : new String[] {"user", "limited", "no-consume", "no-send"}) {
            String name = settings.getProperty(role, role);
            logins.addUser(name, settings.getProperty("password"));
            logins.addRole(name, role);
        }
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfigResourcePath(Path.of(arguments[0]).toUri().toString());
        broker.setSecurityManager(new ActiveMQJAASSecurityManager(InVMLoginModule.class.getName(), logins));
        broker.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                broker.stop();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        Thread.currentThread().join();
    }
}
