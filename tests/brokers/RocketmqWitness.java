import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RemotingClient;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/**
 * Sends requests to name servers, brokers and proxies by RocketMQ's own client, and decodes stored messages by its own decoder.
 *
 * <p>Each line of the input is one request in JSON, and each line of the output is the reply to one of them, in any order.
 */
public class RocketmqWitness {
    private static final Map<String, RemotingClient> CLIENTS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream replies = System.out;
        System.setOut(System.err); // what a library prints is no reply
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null; ) {
            JSONObject request = JSON.parseObject(line);
            threads.execute(() -> {
                Map<String, Object> reply = new HashMap<>();
                try {
                    send(request, reply);
                } catch (Throwable error) {
                    reply.put("error", error.getClass().getSimpleName());
                    reply.put("remark", String.valueOf(error.getMessage()));
                }
                reply.put("id", request.getLong("id"));
                String text = JSON.toJSONString(reply, SerializerFeature.WriteNonStringKeyAsString);
                synchronized (replies) {
                    replies.println(text);
                    replies.flush();
                }
            });
        }
        System.exit(0);
    }

    private static void send(JSONObject request, Map<String, Object> reply) throws Exception {
        String login = request.getString("connection") + "\0" + request.getString("user") + "\0" + request.getString("password");
        if (request.getString("code").equals("close")) {
            RemotingClient ended = CLIENTS.remove(login);
            if (ended != null) {
                ended.shutdown();
            }
            return;
        }
        String code = request.getString("code");
        RemotingCommand command = RemotingCommand.createRequestCommand(
                code.matches("\\d+") ? Integer.parseInt(code) : RequestCode.class.getField(code).getInt(null), null);
        HashMap<String, String> fields = new HashMap<>();
        request.getJSONObject("fields").forEach((name, value) -> fields.put(name, String.valueOf(value)));
        if (request.containsKey("properties")) {
            Map<String, String> properties = new HashMap<>();
            request.getJSONObject("properties").forEach((name, value) -> properties.put(name, String.valueOf(value)));
            fields.put("properties", MessageDecoder.messageProperties2String(properties));
        }
        command.setExtFields(fields);
        byte[] sent = Base64.getDecoder().decode(request.getString("body"));
        command.setBody(sent.length == 0 ? null : sent);
        RemotingCommand found = client(login, request.getString("user"), request.getString("password"))
                .invokeSync(request.getString("address"), command, request.getLong("within"));
        reply.put("code", found.getCode());
        reply.put("remark", found.getRemark() == null ? "" : found.getRemark());
        reply.put("fields", found.getExtFields() == null ? Map.of() : found.getExtFields());
        reply.put("version", MQVersion.getVersionDesc(found.getVersion()));
        byte[] body = found.getBody() == null ? new byte[0] : found.getBody();
        switch (request.getString("reads")) {
            case "table" -> reply.put("table", JSON.parse(new String(body, StandardCharsets.UTF_8)));
            case "messages" -> reply.put("messages", messages(body));
            default -> reply.put("body", Base64.getEncoder().encodeToString(body));
        }
    }

    private static RemotingClient client(String name, String user, String password) {
        return CLIENTS.computeIfAbsent(name, unknown -> {
            NettyRemotingClient made = new NettyRemotingClient(new NettyClientConfig());
            if (!user.isEmpty()) {
                made.registerRPCHook(new AclClientRPCHook(new SessionCredentials(user, password)));
            }
            made.start();
            return made;
        });
    }

    private static List<Object> messages(byte[] body) {
        List<Object> found = new ArrayList<>();
        for (int place = 0; place < body.length; ) {
            int size = ByteBuffer.wrap(body, place, 4).getInt();
            found.add(message(body, place, size));
            place += size;
        }
        return found;
    }

    private static Map<String, Object> message(byte[] body, int place, int size) {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(body, place, size).slice(), true, true);
        if (message == null) { // its body cannot be decompressed
            message = MessageDecoder.decode(ByteBuffer.wrap(body, place, size).slice(), true, false);
        }
        Map<String, Object> table = new HashMap<>();
        table.put("id", message.getProperties().getOrDefault("UNIQ_KEY", message.getMsgId()));
        table.put("topic", message.getTopic());
        table.put("queue", message.getQueueId());
        table.put("offset", message.getQueueOffset());
        table.put("body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()));
        table.put("properties", message.getProperties());
        table.put("bornAt", message.getBornTimestamp());
        table.put("storedAt", message.getStoreTimestamp());
        table.put("reconsumeTimes", message.getReconsumeTimes());
        InetSocketAddress host = (InetSocketAddress) message.getBornHost();
        table.put("bornHost", host.getAddress().getHostAddress() + ":" + host.getPort());
        return table;
    }
}
