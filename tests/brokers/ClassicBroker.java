import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.activemq.broker.BrokerPlugin;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.broker.region.policy.IndividualDeadLetterStrategy;
import org.apache.activemq.broker.region.policy.PolicyEntry;
import org.apache.activemq.broker.region.policy.PolicyMap;
import org.apache.activemq.filter.DestinationMapEntry;
import org.apache.activemq.plugin.StatisticsBrokerPlugin;
import org.apache.activemq.security.AuthenticationUser;
import org.apache.activemq.security.AuthorizationEntry;
import org.apache.activemq.security.AuthorizationPlugin;
import org.apache.activemq.security.DefaultAuthorizationMap;
import org.apache.activemq.security.SimpleAuthenticationPlugin;

/** ActiveMQ Classic as activemq.py wants it; the arguments are files of properties: settings, logins. Else as it is shipped. */
public class ClassicBroker {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String path : arguments) {
            try (Reader file = Files.newBufferedReader(Path.of(path))) {
                settings.load(file);
            }
        }
        for (String name : settings.stringPropertyNames()) {
            if (name.startsWith("javax.net.ssl.")) {
                System.setProperty(name, settings.getProperty(name));
            }
        }
        BrokerService broker = new BrokerService();
        broker.setBrokerName("test");
        broker.setDataDirectory(settings.getProperty("data"));
        broker.setSchedulerSupport(Boolean.parseBoolean(settings.getProperty("scheduler")));
        broker.setAdvisorySupport(Boolean.parseBoolean(settings.getProperty("advisories")));
        broker.getManagementContext().setCreateConnector(false); // no port for JMX: Jolokia is in the process
        BrokerPlugin[] plugins = {logins(settings), rights(), new StatisticsBrokerPlugin()};
        broker.setPlugins(Boolean.parseBoolean(settings.getProperty("statistics")) ? plugins : Arrays.copyOf(plugins, 2));
        broker.setDestinationPolicy(policies());
        for (String uri : settings.getProperty("connectors").split(" ")) {
            broker.addConnector(uri);
        }
        broker.start();
        broker.waitUntilStopped();
    }

    private static SimpleAuthenticationPlugin logins(Properties settings) {
        String password = settings.getProperty("password");
        return new SimpleAuthenticationPlugin(List.of(
            new AuthenticationUser(settings.getProperty("user"), password, "all"),
            new AuthenticationUser(settings.getProperty("limited"), password, "limited"),
            new AuthenticationUser("no-consume", password, "no-consume"),
            new AuthenticationUser("no-send", password, "no-send")));
    }

    /** The limited user has the queues, but no topic: the broker's advisory messages are topics. Two users lack one right to queues. */
    private static AuthorizationPlugin rights() throws Exception {
        AuthorizationEntry queues = new AuthorizationEntry();
        queues.setQueue(">");
        AuthorizationEntry topics = new AuthorizationEntry();
        topics.setTopic(">");
        for (AuthorizationEntry entry : List.of(queues, topics)) {
            String roles = entry == queues ? "all,limited,no-consume,no-send" : "all,no-consume,no-send";
            entry.setRead(entry == queues ? roles.replace("no-consume,", "") : roles);
            entry.setWrite(entry == queues ? roles.replace(",no-send", "") : roles);
            entry.setAdmin(roles);
        }
        return new AuthorizationPlugin(new DefaultAuthorizationMap(List.<DestinationMapEntry>of(queues, topics)));
    }

    /**
     * JMX shows 400 messages of a queue if nothing else is said; the tests count more dead letters than that.
     * The dead letters of a queue "NAME.unmovable" go to "NAME.unmovable.full", which is always full.
     */
    private static PolicyMap policies() {
        PolicyEntry letters = new PolicyEntry();
        letters.setQueue("ActiveMQ.DLQ");
        letters.setMaxBrowsePageSize(100_000);
        IndividualDeadLetterStrategy to = new IndividualDeadLetterStrategy();
        to.setQueuePrefix("");
        to.setQueueSuffix(".full");
        PolicyEntry unmovable = new PolicyEntry();
        unmovable.setQueue("*.unmovable");
        unmovable.setDeadLetterStrategy(to);
        PolicyEntry full = new PolicyEntry();
        full.setQueue("*.unmovable.full");
        full.setStoreUsageHighWaterMark(0);
        full.setSendFailIfNoSpace(true);
        PolicyMap policies = new PolicyMap();
        policies.setPolicyEntries(List.of(letters, unmovable, full));
        return policies;
    }
}
