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
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.ConfigResource.Type;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.generated.ShareSnapshotKey;
import org.apache.kafka.coordinator.share.generated.ShareSnapshotValue;
import org.apache.kafka.coordinator.share.generated.ShareUpdateKey;
import org.apache.kafka.coordinator.share.generated.ShareUpdateValue;
import org.apache.kafka.server.share.fetch.RecordState;

/** A client of Kafka, by the protocol of docs/clients.md. A log is a topic of one partition, a queue a topic with a
 * share group. */
public class Client {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int ANSWER_MS = 5000, READY_MS = 1000, CONNECT_MS = 1500, FETCH_MS = 50;
    static final String DROPPED = "#dropped";

    /** Certainly not done. */
    static class NotDone extends Exception {
        NotDone(String why) {
            super(why);
        }
    }

    /** A consumer of a queue with the one record that it has acquired and not acknowledged. */
    static class Held {
        final String queue;
        final KafkaShareConsumer<byte[], byte[]> consumer;
        final ConsumerRecord<byte[], byte[]> record;

        Held(String queue, KafkaShareConsumer<byte[], byte[]> consumer, ConsumerRecord<byte[], byte[]> record) {
            this.queue = queue;
            this.consumer = consumer;
            this.record = record;
        }
    }

    String server;
    JsonNode options;
    Admin admin;
    final Map<String, Deque<KafkaShareConsumer<byte[], byte[]>>> idle = new HashMap<>();
    final Map<String, Held> held = new HashMap<>();
    final Map<String, Deque<byte[]>> dropped = new HashMap<>();
    int turn, deliveries;
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
        options = request.get("options");
        open();
        for (String kind : List.of("logs", "queues"))
            for (JsonNode topic : request.get("names").get(kind)) partitions(topic.asText());
        return null;
    }

    void open() {
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
        return count(producer.metrics().values(), "record-send-total");
    }

    /** Return one of the library's counters: that of the whole client, which has no further labels. */
    static double count(Collection<? extends Metric> metrics, String name) {
        for (Metric metric : metrics)
            if (metric.metricName().name().equals(name) && metric.metricName().tags().keySet().equals(Set.of("client-id")))
                return (double) metric.metricValue();
        throw new IllegalStateException("the library has no " + name);
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

    Object send(JsonNode request) throws Exception {
        String queue = request.get("queue").asText();
        produce(queue, turn++ % partitions(queue).size(), request.get("body"));
        return null;
    }

    static String group(String queue) {
        return "stormproof-" + queue;
    }

    Object take(JsonNode request) throws Exception {
        String queue = request.get("queue").asText();
        if (queue.endsWith(DROPPED)) {
            if (dropped(queue).isEmpty()) return null;
            String delivery = Integer.toString(++deliveries);
            held.put(delivery, new Held(queue, null, null));
            return Map.of("delivery", delivery, "body", body(dropped(queue).pop()));
        }
        Deque<KafkaShareConsumer<byte[], byte[]>> free = idle.computeIfAbsent(queue, name -> new ArrayDeque<>());
        KafkaShareConsumer<byte[], byte[]> consumer = free.isEmpty() ? member(queue) : free.pop();
        long until = System.currentTimeMillis() + Math.round(request.get("timeout").asDouble() * 1000);
        do {
            long left = Math.max(1, until - System.currentTimeMillis());
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(left))) { // at most one
                String delivery = Integer.toString(++deliveries);
                held.put(delivery, new Held(queue, consumer, record));
                return Map.of("delivery", delivery, "body", body(record.value()), "give_back", true);
            }
        } while (System.currentTimeMillis() < until);
        if (count(consumer.metrics().values(), "connection-count") == 0)
            throw new IllegalStateException("no broker is connected");
        free.push(consumer);
        return null;
    }

    /** Return a new member of a queue's group, which acquires one record at a time. */
    KafkaShareConsumer<byte[], byte[]> member(String queue) {
        Map<String, Object> settings = consuming();
        settings.putAll(Map.of("group.id", group(queue), "share.acknowledgement.mode", "explicit", "share.acquire.mode",
            "record_limit", "max.poll.records", 1));
        KafkaShareConsumer<byte[], byte[]> consumer =
            new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(Set.of(queue));
        return consumer;
    }

    /** Acknowledge a record. A lost lock is no proof that nothing happened: the library may have repeated a request. */
    Object end(JsonNode request, AcknowledgeType type) throws Exception {
        Held ended = held.remove(request.get("delivery").asText());
        if (ended.consumer == null) return null; // one that the group has dropped
        ended.consumer.acknowledge(ended.record, type);
        Map<TopicIdPartition, Optional<KafkaException>> answers = ended.consumer.commitSync(Duration.ofMillis(ANSWER_MS));
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : answers.entrySet()) {
            if (each.getKey().partition() != ended.record.partition()) continue;
            if (each.getValue().isPresent()) throw each.getValue().get();
            idle.get(ended.queue).push(ended.consumer);
            return null;
        }
        throw new IllegalStateException("the library told no answer to the acknowledgement");
    }

    Admin admin() {
        if (admin == null) {
            Map<String, Object> settings = common();
            settings.putAll(Map.of("request.timeout.ms", ANSWER_MS, "default.api.timeout.ms", ANSWER_MS));
            admin = Admin.create(settings);
        }
        return admin;
    }

    Map<TopicPartition, SharePartitionOffsetInfo> progress(String queue) throws Exception {
        return admin().listShareGroupOffsets(Map.of(group(queue), new ListShareGroupOffsetsSpec()))
            .partitionsToOffsetInfo(group(queue)).get();
    }

    /** Configure the groups of queues, and begin those that have not begun, at the first record. */
    Object prepare(JsonNode request) throws Exception {
        for (JsonNode queue : request.get("names").get("queues")) {
            String group = group(queue.asText());
            List<AlterConfigOp> wanted = new ArrayList<>();
            Map.of("share.auto.offset.reset", "earliest",
                "share.record.lock.duration.ms", options.get("share_record_lock_duration_ms").asText(),
                "share.delivery.count.limit", options.get("share_delivery_count_limit").asText())
                .forEach((name, value) -> wanted.add(new AlterConfigOp(new ConfigEntry(name, value), OpType.SET)));
            admin().incrementalAlterConfigs(Map.of(new ConfigResource(Type.GROUP, group), wanted)).all().get();
            Map<TopicPartition, Long> begins = new HashMap<>();
            for (PartitionInfo each : partitions(queue.asText()))
                begins.put(new TopicPartition(queue.asText(), each.partition()), 0L);
            for (Map.Entry<TopicPartition, SharePartitionOffsetInfo> each : begun(queue.asText()).entrySet())
                if (each.getValue() != null) begins.remove(each.getKey());
            if (!begins.isEmpty()) admin().alterShareGroupOffsets(group, begins).all().get();
        }
        return null;
    }

    Map<TopicPartition, SharePartitionOffsetInfo> begun(String queue) throws Exception {
        try {
            return progress(queue);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof GroupIdNotFoundException) return Map.of();
            throw error;
        }
    }

    /** Return the bodies of the records that a queue's group has dropped at its limit, as the group's state tells. */
    Deque<byte[]> dropped(String name) throws Exception {
        if (dropped.containsKey(name)) return dropped.get(name);
        String queue = name.substring(0, name.length() - DROPPED.length());
        Map<TopicPartition, Set<Long>> offsets = new HashMap<>();
        CoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        for (ConsumerRecord<byte[], byte[]> each : all("__share_group_state")) {
            if (each.value() == null) continue;
            CoordinatorRecord record = serde.deserialize(ByteBuffer.wrap(each.key()), ByteBuffer.wrap(each.value()));
            if (record.key() instanceof ShareUpdateKey key && key.groupId().equals(group(queue))
                    && record.value().message() instanceof ShareUpdateValue value)
                for (ShareUpdateValue.StateBatch batch : value.stateBatches())
                    drop(offsets, queue, key.partition(), batch.firstOffset(), batch.lastOffset(), batch.deliveryState());
            if (record.key() instanceof ShareSnapshotKey key && key.groupId().equals(group(queue))
                    && record.value().message() instanceof ShareSnapshotValue value)
                for (ShareSnapshotValue.StateBatch batch : value.stateBatches())
                    drop(offsets, queue, key.partition(), batch.firstOffset(), batch.lastOffset(), batch.deliveryState());
        }
        Deque<byte[]> bodies = new ArrayDeque<>();
        for (ConsumerRecord<byte[], byte[]> each : offsets.isEmpty() ? List.<ConsumerRecord<byte[], byte[]>>of() : all(queue))
            if (offsets.getOrDefault(new TopicPartition(queue, each.partition()), Set.of()).contains(each.offset()))
                bodies.add(each.value());
        dropped.put(name, bodies);
        return bodies;
    }

    static void drop(Map<TopicPartition, Set<Long>> offsets, String queue, int partition, long first, long last,
                     byte state) {
        if (state != RecordState.ARCHIVED.id()) return; // this client rejects nothing: only the limit archives
        Set<Long> found = offsets.computeIfAbsent(new TopicPartition(queue, partition), each -> new HashSet<>());
        for (long offset = first; offset <= last; offset++) found.add(offset);
    }

    /** Return all records of a topic. */
    List<ConsumerRecord<byte[], byte[]>> all(String topic) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        Map<String, Object> settings = consuming();
        settings.put("auto.offset.reset", "earliest");
        try (var whole = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            for (PartitionInfo each : whole.partitionsFor(topic)) places.add(new TopicPartition(topic, each.partition()));
            Map<TopicPartition, Long> ends = whole.endOffsets(places);
            whole.assign(places);
            while (places.stream().anyMatch(place -> whole.position(place) < ends.get(place)))
                whole.poll(Duration.ofMillis(FETCH_MS)).forEach(found::add);
        }
        return found;
    }

    /** Return the number of records that the group has not completed; null if the brokers do not tell it. */
    Object depth(JsonNode request) throws Exception {
        String queue = request.get("queue").asText();
        if (queue.endsWith(DROPPED)) return dropped(queue).size();
        Map<TopicPartition, SharePartitionOffsetInfo> told = progress(queue);
        long count = 0;
        for (PartitionInfo each : partitions(queue)) {
            SharePartitionOffsetInfo info = told.get(new TopicPartition(queue, each.partition()));
            if (info == null || info.lag().isEmpty()) return null;
            long lag = info.lag().get();
            if (lag < 0) throw new IllegalStateException(each + " ends before the group's progress");
            count += lag;
        }
        return count;
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
            case "prepare": return prepare(request);
            case "send": return send(request);
            case "take": return take(request);
            case "ack": return end(request, AcknowledgeType.ACCEPT);
            case "give_back": return end(request, AcknowledgeType.RELEASE);
            case "depth": return depth(request);
            case "close": return null; // the end of this program closes the connections
            default: throw new IllegalArgumentException("unknown request " + op);
        }
    }

    /** Load the library's classes: `connect` must not take that long. */
    static void load() throws IOException {
        Client client = new Client();
        client.server = "127.0.0.1:9";
        client.options = JSON.readTree("{\"acks\": \"all\", \"idempotence\": \"false\", \"repeats\": false}");
        client.open();
        client.producer.close(Duration.ZERO);
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // for what the library logs
        load();
        out.println("{\"stormproof\": 1, \"can\": [\"logs\", \"queues\", \"prepare\"], \"port\": 9092}");
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
