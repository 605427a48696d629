import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.Logger;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.InvalidDestinationException;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import org.objectweb.joram.client.jms.FactoryParameters;
import org.objectweb.joram.client.jms.Queue;
import org.objectweb.joram.client.jms.admin.AdminModule;
import org.objectweb.joram.client.jms.connection.RequestMultiplexer;
import org.objectweb.joram.client.jms.tcp.TcpConnectionFactory;

/** A client of JORAM by the protocol of docs/clients.md, for 5.0.9 and 5.10. Queues are known by their identifiers. */
public class Client {
    static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    static final String CLUSTER_QUEUE = "org.objectweb.joram.mom.dest.ClusterQueue";
    static final int ADMIN_SECONDS = 3;

    Connection connection;
    RequestMultiplexer link;
    JsonObject options;
    String host, login, password;
    int port, place;
    Session sending;
    MessageProducer producer;
    final List<Taking> free = new ArrayList<>();
    final Map<String, Taking> held = new HashMap<>();
    int deliveries;
    boolean administers;

    /** A session for one message at a time: its commit answers, unlike JORAM's acknowledge(), which only sends. */
    static class Taking {
        final Session session;
        final Map<String, MessageConsumer> consumers = new HashMap<>();

        Taking(Session session) {
            this.session = session;
        }
    }

    static class Named extends Queue {
        Named(String identifier) {
            super(identifier);
        }
    }

    Object connect(JsonObject request) throws Exception {
        host = request.get("host").getAsString();
        port = request.get("port").getAsInt();
        login = request.get("login").getAsString();
        password = request.get("password").getAsString();
        options = request.getAsJsonObject("options");
        JsonArray addresses = request.getAsJsonArray("addresses");
        for (int i = 0; i < addresses.size(); i++)
            if (addresses.get(i).getAsJsonObject().get("host").getAsString().equals(host)) place = i;
        TcpConnectionFactory factory = (TcpConnectionFactory) TcpConnectionFactory.create(host, port);
        FactoryParameters parameters = factory.getParameters();
        parameters.connectingTimer = 0; // one attempt
        parameters.cnxPendingTimer = options.get("pending").getAsInt();
        String local = request.get("local").getAsString();
        if (!local.isEmpty()) parameters.outLocalAddress = local;
        connection = factory.createConnection(login, password);
        Field field = org.objectweb.joram.client.jms.Connection.class.getDeclaredField("mtpx");
        field.setAccessible(true);
        link = (RequestMultiplexer) field.get(connection);
        sending = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        producer = sending.createProducer(null);
        connection.start();
        return null;
    }

    /** Raise an exception unless the connection is open: when it is lost, the library ends the calls that wait for an
     * answer as if it had come (Requestor.request returns null, and send and commit do not look). */
    <T> T answered(T result) throws IOException {
        if (link.isClosed()) throw new IOException("the connection was lost before the answer");
        return result;
    }

    /** Return a queue by its name; of a clustered one the element on the server `place`. */
    Queue queue(JsonObject request, int place) {
        JsonArray elements = elements(request);
        return new Named(elements.get(place % elements.size()).getAsString());
    }

    JsonArray elements(JsonObject request) {
        return options.getAsJsonObject("queues").getAsJsonArray(request.get("queue").getAsString());
    }

    Object send(JsonObject request) throws Exception {
        BytesMessage message = sending.createBytesMessage();
        message.writeBytes(bytes(request.get("body")));
        producer.send(queue(request, place), message, DeliveryMode.PERSISTENT, 4, 0);
        return answered(null);
    }

    /** Take from the element on this client's server, or, if it has nothing for half of the time, from the others:
     * elements hand messages to each other under load alone (ClusterQueue: consumThreshold, producThreshold). */
    Object take(JsonObject request) throws Exception {
        if (free.isEmpty()) free.add(new Taking(connection.createSession(true, 0)));
        Taking taking = free.get(free.size() - 1);
        int elements = elements(request).size();
        double left = request.get("timeout").getAsDouble() * 1000;
        Message message = null;
        for (int i = 0; i < elements && message == null; i++) {
            double share = elements == 1 ? left : left / 2 / (i == 0 ? 1 : elements - 1);
            message = receive(taking, queue(request, place + i), Math.max(1, Math.round(share)));
        }
        if (message == null) return null;
        free.remove(taking);
        String delivery = Integer.toString(++deliveries);
        held.put(delivery, taking);
        BytesMessage found = (BytesMessage) message;
        byte[] body = new byte[(int) found.getBodyLength()];
        found.readBytes(body);
        Map<String, Object> answer = new HashMap<>();
        answer.put("delivery", delivery);
        answer.put("body", body(body));
        answer.put("give_back", true);
        return answer;
    }

    Message receive(Taking taking, Queue queue, long milliseconds) throws Exception {
        MessageConsumer consumer = taking.consumers.get(queue.getName());
        if (consumer == null) {
            consumer = taking.session.createConsumer(queue);
            taking.consumers.put(queue.getName(), consumer);
        }
        return answered(consumer.receive(milliseconds));
    }

    Object end(JsonObject request, boolean commit) throws Exception {
        Taking taking = held.remove(request.get("delivery").getAsString());
        if (commit) taking.session.commit();
        else taking.session.rollback();
        free.add(taking);
        return answered(null);
    }

    /** Return the number of messages, unacknowledged ones included; null where the server does not tell it. */
    Object depth(JsonObject request) throws Exception {
        if (!options.get("depths").getAsBoolean()) return null;
        administer();
        long count = 0;
        for (JsonElement element : elements(request)) {
            Map<?, ?> told = new Named(element.getAsString()).getStatistic();
            for (String name : List.of("PendingMessageCount", "DeliveredMessageCount"))
                count += ((Number) told.get(name)).longValue();
        }
        return count;
    }

    void administer() throws Exception {
        if (!administers) AdminModule.connect(host, port, login, password, ADMIN_SECONDS);
        administers = true;
    }

    /** Create queues, each on all of these servers; return their identifiers. */
    Object create(JsonObject request) throws Exception {
        administer();
        Map<String, List<String>> found = new HashMap<>();
        JsonArray servers = request.getAsJsonArray("servers");
        for (JsonElement name : request.getAsJsonArray("names")) {
            Queue first = null;
            List<String> elements = new ArrayList<>();
            for (JsonElement server : servers) {
                Queue queue = servers.size() == 1
                    ? Queue.create(server.getAsInt(), name.getAsString())
                    : Queue.create(server.getAsInt(), name.getAsString(), CLUSTER_QUEUE, null);
                queue.setFreeReading();
                queue.setFreeWriting();
                if (first == null) first = queue;
                else first.addClusteredQueue(queue);
                elements.add(queue.getName());
            }
            found.put(name.getAsString(), elements);
        }
        return found;
    }

    Object close() {
        try {
            if (administers) AdminModule.disconnect();
            if (connection != null) connection.close();
        } catch (JMSException error) {
            return null; // it was lost before
        }
        return null;
    }

    static byte[] bytes(JsonElement body) {
        if (body.isJsonPrimitive()) return body.getAsString().getBytes(StandardCharsets.UTF_8);
        return Base64.getDecoder().decode(body.getAsJsonObject().get("base64").getAsString());
    }

    static Object body(byte[] bytes) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            return Map.of("base64", Base64.getEncoder().encodeToString(bytes));
        }
    }

    Object carryOut(String op, JsonObject request) throws Exception {
        switch (op) {
            case "connect": return connect(request);
            case "create": return create(request);
            case "send": return send(request);
            case "take": return take(request);
            case "ack": return end(request, true);
            case "give_back": return end(request, false);
            case "depth": return depth(request);
            case "close": return close();
            default: throw new IllegalArgumentException("unknown request " + op);
        }
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // for what the library prints
        Logger.getLogger("").setLevel(Level.WARNING);
        TcpConnectionFactory.create("127.0.0.1", 9); // loads the library: `connect` must not take that long
        out.println("{\"stormproof\": 1, \"can\": [\"queues\"], \"port\": 16010}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Client client = new Client();
        for (String line; (line = lines.readLine()) != null; ) {
            JsonObject request = JSON.fromJson(line, JsonObject.class);
            String op = request.get("op").getAsString();
            Map<String, Object> answer = new HashMap<>();
            answer.put("id", request.get("id").getAsLong());
            try {
                answer.put("ok", client.carryOut(op, request));
            } catch (InvalidDestinationException error) { // the server's answer: it has no such queue
                answer.put("fail", error.toString());
                answer.put("missing", true);
            } catch (Exception error) {
                answer.put(op.equals("connect") ? "fail" : "error", error.toString()); // a connect changes no queue
            }
            out.println(JSON.toJson(answer));
        }
        System.exit(0); // the library's threads would go on
    }
}
