import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;

/** Clients of Java that are told what to do line by line, as tests/clients/__init__.py says. */
public class ClientsProbe {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(500);
    private static final long PACE_MS = 250;

    /** By way and library, as tests/clients/ways.py writes them. */
    static JsonNode ways;

    public static void main(String[] args) throws Exception {
        ways = JSON.readTree(new File(args[0]));
        Map<String, Client> clients = new HashMap<>();
        Map<String, KafkaProducer<String, String>> transactional = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] w = line.split(" ");
            String answer = "done";
            try {
                switch (w[0]) {
                    case "open" -> clients.put(w[1], new Reader(w[1], w[2], w[3], w[4], w[5]));
                    case "share" -> clients.put(w[1], new Sharer(w[1], w[2], w[3]));
                    case "produce" -> clients.put(w[1], new Writer(w[1], w[2]));
                    case "transact" -> answer = transact(transactional, w[1], w[2], w[3], w[4]);
                    default -> clients.remove(w[1]).end();
                }
            } catch (Exception e) {
                answer = "failed " + e;
            }
            tell("", "answer", answer, -1);
        }
        for (Client client : clients.values()) {
            client.end();
        }
        transactional.values().forEach(p -> p.close(Duration.ofSeconds(5)));
    }

    static synchronized void tell(String client, String event, String value, long offset) {
        try {
            System.out.println(JSON.writeValueAsString(Map.of(
                "client", client, "event", event, "offset", offset, "value", value)));
        } catch (com.fasterxml.jackson.core.JsonProcessingException e) {
            throw new IllegalStateException(e);
        }
    }

    static Properties properties(String name, String... pairs) {
        Properties made = new Properties();
        ways.get(name.split(":")[0]).get("java").properties()
            .forEach(e -> made.put(e.getKey(), e.getValue().asText()));
        for (String kind : List.of("key", "value")) {
            String classes = "org.apache.kafka.common.serialization.String";
            made.put(kind + ".serializer", classes + "Serializer");
            made.put(kind + ".deserializer", classes + "Deserializer");
        }
        for (int n = 0; n < pairs.length; n += 2) {
            made.put(pairs[n], pairs[n + 1]);
        }
        return made;
    }

    /** One client in a thread of its own; an error that ends it is told. */
    abstract static class Client {
        final String name;
        volatile boolean ending;
        private final Thread thread;

        Client(String name) {
            this.name = name;
            thread = new Thread(() -> {
                try {
                    run();
                } catch (Exception e) {
                    tell(name, "ended", e.toString(), -1);
                }
            }, name);
        }

        abstract void run() throws Exception;

        void begin() {
            thread.start();
        }

        void end() throws InterruptedException {
            ending = true;
            thread.join();
        }

        void read(ConsumerRecords<String, String> records) {
            for (ConsumerRecord<String, String> r : records) {
                tell(name, "read", r.value().split(" ")[0], r.offset());
            }
        }
    }

    static class Reader extends Client {
        private final KafkaConsumer<String, String> consumer;

        Reader(String name, String group, String protocol, String isolation, String topic) {
            super(name);
            consumer = new KafkaConsumer<>(properties(
                name, "group.id", group, "group.protocol", protocol, "isolation.level", isolation,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "fetch.min.bytes", "16384", "fetch.max.wait.ms", "500"));
            consumer.subscribe(List.of(topic));
            begin();
        }

        void run() {
            try (consumer) {
                while (!ending) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    read(records);
                    if (!records.isEmpty()) {
                        consumer.commitSync();
                    }
                }
            }
        }
    }

    /** Goes on after an error, and tells each kind of error once. */
    static class Sharer extends Client {
        private final KafkaShareConsumer<String, String> consumer;

        Sharer(String name, String group, String topic) throws Exception {
            super(name);
            try (Admin admin = Admin.create(properties(name))) {
                ConfigResource place = new ConfigResource(ConfigResource.Type.GROUP, group);
                ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
                admin.incrementalAlterConfigs(Map.of(
                    place, List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET)))).all().get();
            }
            consumer = new KafkaShareConsumer<>(properties(name, "group.id", group));
            consumer.subscribe(List.of(topic));
            begin();
        }

        void run() throws InterruptedException {
            String last = "";
            try (consumer) {
                while (!ending) {
                    try {
                        read(consumer.poll(POLL));
                    } catch (KafkaException e) {
                        if (!last.equals(e.toString())) {
                            last = e.toString();
                            tell(name, "told", last, -1);
                        }
                        Thread.sleep(PACE_MS);
                    }
                }
            }
        }
    }

    static class Writer extends Client {
        private final KafkaProducer<String, String> producer;
        private final String topic;

        Writer(String name, String topic) {
            super(name);
            this.topic = topic;
            producer = new KafkaProducer<>(properties(name, "client.id", name.replace(':', '-')));
            begin();
        }

        void run() throws InterruptedException {
            try (producer) {
                for (int sent = 0; !ending; sent++) {
                    String value = name + "/" + sent;
                    producer.send(new ProducerRecord<>(topic, 0, null, value), (at, error) -> {
                        if (error != null) {
                            tell(name, "told", error.toString(), -1);
                        } else {
                            tell(name, "acked", value, at.offset());
                        }
                    });
                    Thread.sleep(PACE_MS);
                }
            }
        }
    }

    static String transact(
            Map<String, KafkaProducer<String, String>> known,
            String name, String topic, String end, String value) throws InterruptedException {
        KafkaProducer<String, String> producer = known.computeIfAbsent(name, n -> {
            KafkaProducer<String, String> made =
                new KafkaProducer<>(properties(name, "transactional.id", n + "-" + topic));
            made.initTransactions();
            return made;
        });
        producer.beginTransaction();
        long offset;
        try {
            offset = producer.send(new ProducerRecord<>(topic, 0, null, value)).get().offset();
            if (end.equals("commit")) {
                producer.commitTransaction();
                return "committed " + offset;
            }
        } catch (KafkaException | ExecutionException e) {
            Throwable told = e instanceof ExecutionException ? e.getCause() : e;
            producer.abortTransaction();
            return "refused " + told.getClass().getSimpleName();
        }
        producer.abortTransaction();
        return "aborted " + offset;
    }
}
