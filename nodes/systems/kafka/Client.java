import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A client of Kafka, by the protocol of docs/clients.md. A log is a topic of one partition. */
public class Client {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int ANSWER_MS = 5000, READY_MS = 1000, CONNECT_MS = 1500, FETCH_MS = 50;

    /** Certainly not done. */
    static class NotDone extends Exception {
        NotDone(String why) {
            super(why);
        }
    }

    String server;
    boolean repeats;
    KafkaProducer<byte[], byte[]> producer;
    KafkaConsumer<byte[], byte[]> reader;

    Object connect(JsonNode request) throws Exception {
        String host = request.get("host").asText();
        int port = request.get("port").asInt();
        try (Socket trial = new Socket()) { // the library connects later, and does not tell who refused it
            trial.connect(new InetSocketAddress(host, port), CONNECT_MS);
        } catch (IOException error) {
            throw new NotDone(host + ": " + error.getMessage());
        }
        server = host + ":" + port;
        open(request.get("options"));
        for (String kind : List.of("logs", "queues"))
            for (JsonNode topic : request.get("names").get(kind)) partitions(topic.asText());
        return null;
    }

    void open(JsonNode options) {
        String idempotence = options.get("idempotence").asText();
        repeats = options.get("repeats").asBoolean() || idempotence.equals("true");
        Map<String, Object> settings = common();
        settings.putAll(Map.of("acks", options.get("acks").asText(), "enable.idempotence", idempotence,
            "linger.ms", 0, "max.block.ms", ANSWER_MS, "delivery.timeout.ms", ANSWER_MS,
            "request.timeout.ms", repeats ? options.get("socket_timeout_ms").asInt() : ANSWER_MS));
        if (!repeats) settings.put("retries", 0); // each record in one Produce request
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    Map<String, Object> common() {
        return new HashMap<>(Map.of("bootstrap.servers", server, "client.id", "stormproof", "reconnect.backoff.ms", 50,
            "reconnect.backoff.max.ms", 500, "metadata.max.age.ms", 1000, "socket.connection.setup.timeout.ms",
            CONNECT_MS, "enable.metrics.push", false));
    }

    Map<String, Object> consuming() {
        Map<String, Object> settings = common();
        settings.putAll(Map.of("fetch.max.wait.ms", FETCH_MS, "request.timeout.ms", ANSWER_MS,
            "default.api.timeout.ms", ANSWER_MS));
        return settings;
    }

    List<PartitionInfo> partitions(String topic) throws NotDone {
        try {
            return producer.partitionsFor(topic);
        } catch (KafkaException error) { // it asks only
            throw new NotDone(error.toString());
        }
    }

    /** Send a record; return its offset in Kafka.
     *
     * The producer counts the records of a request before it writes the request (Sender, updateProduceRequestMetrics):
     * a record was certainly not sent if it failed and the count is the same as before. */
    long produce(String topic, int partition, JsonNode body) throws Exception {
        if (partitions(topic).stream().anyMatch(each -> each.partition() == partition && each.leader() == null))
            throw new NotDone("nobody leads " + topic + " as far as this client knows");
        double before = transmitted();
        Future<RecordMetadata> sent = producer.send(new ProducerRecord<>(topic, partition, null, bytes(body)));
        try {
            try {
                return sent.get(READY_MS, TimeUnit.MILLISECONDS).offset();
            } catch (TimeoutException late) {
                if (transmitted() == before) producer.close(Duration.ZERO); // ends what waits for a connection
                return sent.get().offset();
            }
        } catch (ExecutionException error) {
            if (transmitted() == before) throw new NotDone("not sent: " + error.getCause());
            if (!repeats && rejected(error.getCause())) throw new NotDone(error.getCause().toString());
            throw error;
        }
    }

    double transmitted() {
        for (Metric metric : producer.metrics().values())
            if (metric.metricName().name().equals("record-send-total")
                    && metric.metricName().group().equals("producer-metrics")) return (double) metric.metricValue();
        throw new IllegalStateException("the library counts no records");
    }

    /** Return whether an answer means that nothing was written (Kafka's protocol, "Error Codes": 19, 10, 18, 17, 87,
     * 29, 31). */
    static boolean rejected(Throwable error) {
        return error instanceof NotEnoughReplicasException || error instanceof RecordTooLargeException
            || error instanceof RecordBatchTooLargeException || error instanceof InvalidTopicException
            || error instanceof InvalidRecordException || error instanceof AuthorizationException;
    }

    Object append(JsonNode request) throws Exception {
        long offset = produce(request.get("log").asText(), 0, request.get("body"));
        if (offset < 0) throw new IllegalStateException("the record is stored; the broker did not tell its offset");
        return offset + 1; // offsets of the harness begin at 1
    }

    Object read(JsonNode request) {
        TopicPartition place = new TopicPartition(request.get("log").asText(), 0);
        long after = request.get("after").asLong(), limit = request.get("limit").asLong();
        if (reader == null) {
            Map<String, Object> settings = consuming();
            settings.put("auto.offset.reset", "none");
            reader = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }
        // A fetch alone does not tell an end from a leader that does not answer.
        long end = reader.endOffsets(Set.of(place)).get(place);
        List<Map<String, Object>> entries = new ArrayList<>();
        if (after >= end) return entries;
        if (!reader.assignment().equals(Set.of(place))) reader.assign(Set.of(place));
        reader.seek(place, after);
        long until = System.currentTimeMillis() + ANSWER_MS;
        while (entries.isEmpty()) {
            if (System.currentTimeMillis() > until) throw new IllegalStateException("entries before " + end + " are late");
            for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofMillis(200)))
                if (entries.size() < limit) entries.add(Map.of("offset", record.offset() + 1, "body", body(record.value())));
        }
        return entries;
    }

    static byte[] bytes(JsonNode body) {
        if (body.isTextual()) return body.asText().getBytes(StandardCharsets.UTF_8);
        return Base64.getDecoder().decode(body.get("base64").asText());
    }

    static Object body(byte[] bytes) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            return Map.of("base64", Base64.getEncoder().encodeToString(bytes));
        }
    }

    Object carryOut(String op, JsonNode request) throws Exception {
        switch (op) {
            case "connect": return connect(request);
            case "append": return append(request);
            case "read": return read(request);
            case "close": return null; // the end of this program closes the connections
            default: throw new IllegalArgumentException("unknown request " + op);
        }
    }

    /** Load the library's classes: `connect` must not take that long. */
    static void load() throws IOException {
        Client client = new Client();
        client.server = "127.0.0.1:9";
        client.open(JSON.readTree("{\"acks\": \"all\", \"idempotence\": \"false\", \"repeats\": false}"));
        client.producer.close(Duration.ZERO);
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // for what the library logs
        load();
        out.println("{\"stormproof\": 1, \"can\": [\"logs\"], \"port\": 9092}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Client client = new Client();
        for (String line; (line = lines.readLine()) != null; ) {
            JsonNode request = JSON.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            answer.put("id", request.get("id").asLong());
            try {
                answer.put("ok", client.carryOut(request.get("op").asText(), request));
            } catch (NotDone error) {
                answer.put("fail", error.getMessage());
            } catch (Throwable error) {
                answer.put("error", (error instanceof ExecutionException ? error.getCause() : error).toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0); // the library's threads would go on
    }
}
