import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A client of Kafka: stormproof test --client "exec:./client [ACKS]" ... (docs/clients.md). A log is a topic of one partition. */
public class Client {
    static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    static final int ANSWER_MS = 4000; // how long brokers may take to answer

    String acks = "all";
    Map<String, Object> settings;
    int brokers;
    KafkaProducer<String, String> producer;
    KafkaConsumer<String, String> consumer;

    Object connect(JsonObject request) throws IOException {
        String host = request.get("host").getAsString();
        int port = request.get("port").getAsInt();
        try (Socket trial = new Socket()) { // the library connects later, and does not tell who refused it
            trial.connect(new InetSocketAddress(host, port), ANSWER_MS / 2);
        }
        brokers = request.getAsJsonArray("addresses").size();
        open(host + ":" + port);
        return null;
    }

    void open(String server) {
        // Without retries: a record that the library sends again may be stored twice.
        settings = new HashMap<>(Map.of("bootstrap.servers", server, "acks", acks, "retries", 0,
            "enable.idempotence", false, "linger.ms", 0, "max.block.ms", ANSWER_MS, "request.timeout.ms", ANSWER_MS,
            "delivery.timeout.ms", ANSWER_MS, "default.api.timeout.ms", ANSWER_MS));
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        Map<String, Object> reading = new HashMap<>(settings);
        reading.put("auto.offset.reset", "none");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    Object prepare(JsonObject request) throws Exception {
        int replicas = Math.min(3, brokers);
        Map<String, String> options = Map.of("min.insync.replicas", replicas == 3 ? "2" : "1");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", settings.get("bootstrap.servers"),
                "default.api.timeout.ms", 10000, "request.timeout.ms", 5000))) {
            var nodes = admin.describeCluster().nodes().get(); // the first one leads all logs at the beginning
            List<Integer> ids = nodes.stream().map(node -> node.id()).sorted().limit(replicas).toList();
            if (ids.size() < replicas) throw new IllegalStateException("not all brokers have joined yet");
            for (JsonElement log : request.getAsJsonObject("names").getAsJsonArray("logs")) {
                try {
                    NewTopic topic = new NewTopic(log.getAsString(), Map.of(0, ids)).configs(options);
                    admin.createTopics(Set.of(topic)).all().get();
                } catch (ExecutionException error) {
                    if (!(error.getCause() instanceof TopicExistsException)) throw error;
                }
            }
        }
        return null;
    }

    Object append(JsonObject request) throws Exception {
        var record = new ProducerRecord<String, String>(request.get("log").getAsString(), 0, null,
            request.get("body").getAsString());
        return producer.send(record).get().offset() + 1; // offsets of the harness begin at 1
    }

    Object read(JsonObject request) {
        var partition = new TopicPartition(request.get("log").getAsString(), 0);
        long after = request.get("after").getAsLong(), limit = request.get("limit").getAsLong();
        long end = consumer.endOffsets(Set.of(partition)).get(partition); // raises if the leader does not answer
        consumer.assign(Set.of(partition));
        consumer.seek(partition, after);
        List<Map<String, Object>> entries = new ArrayList<>();
        long until = System.currentTimeMillis() + ANSWER_MS;
        while (entries.size() < limit && consumer.position(partition) < end) {
            if (System.currentTimeMillis() > until) throw new IllegalStateException("entries before " + end + " are late");
            for (var record : consumer.poll(Duration.ofMillis(200)))
                if (entries.size() < limit) entries.add(Map.of("offset", record.offset() + 1, "body", record.value()));
        }
        return entries;
    }

    /** The broker wrote nothing, or was not reached (Kafka's protocol guide, "Error Codes" 19, 10, 18, 29, 31). */
    static boolean certainlyNot(Throwable error) {
        return error instanceof ConnectException || error instanceof NotEnoughReplicasException
            || error instanceof RecordTooLargeException || error instanceof AuthorizationException;
    }

    Object carryOut(JsonObject request) throws Exception {
        return switch (request.get("op").getAsString()) {
            case "connect" -> connect(request);
            case "prepare" -> prepare(request);
            case "append" -> append(request);
            case "read" -> read(request);
            case "close" -> null; // the end of this program closes the connections
            default -> throw new IllegalArgumentException("unknown request");
        };
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var client = new Client();
        if (arguments.length > 0) client.acks = arguments[0];
        client.open("127.0.0.1:9"); // loads the library: `connect` must not take that long
        client.producer.close(Duration.ZERO);
        client.consumer.close();
        out.println("{\"stormproof\": 1, \"can\": [\"logs\", \"prepare\"], \"port\": 9092}");
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            JsonObject request = JSON.fromJson(line, JsonObject.class);
            Map<String, Object> answer = new HashMap<>(Map.of("id", request.get("id").getAsLong()));
            try {
                answer.put("ok", client.carryOut(request));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put(certainlyNot(cause) ? "fail" : "error", cause.toString());
            }
            out.println(JSON.toJson(answer));
        }
        System.exit(0); // the library's threads would go on
    }
}
