import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Numbers the records of a topic, exactly once: "open NAME APPLICATION PROTOCOL INPUT OUTPUT", where
 * OUTPUT gets "offset|id|number" of each, the number being that of a store that Kafka keeps.
 */
public class StreamsProbe {
    private static final ObjectMapper JSON = new ObjectMapper();
    // One that stays a member is waited for by the next one until its session is over, 45 s.
    private static final CloseOptions LEAVING =
        CloseOptions.groupMembershipOperation(GroupMembershipOperation.LEAVE_GROUP)
            .withTimeout(Duration.ofSeconds(30));

    public static void main(String[] args) throws Exception {
        JsonNode ways = JSON.readTree(new File(args[0]));
        Map<String, KafkaStreams> running = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] w = line.split(" ");
            String answer = "done";
            try {
                if (w[0].equals("open")) {
                    running.put(w[1], open(ways, args[1], w[1], w[2], w[3], w[4], w[5]));
                } else {
                    running.remove(w[1]).close(LEAVING);
                }
            } catch (Exception e) {
                answer = "failed " + e;
            }
            tell("", "answer", answer);
        }
        running.values().forEach(s -> s.close(LEAVING));
    }

    static synchronized void tell(String client, String event, String value) throws Exception {
        System.out.println(JSON.writeValueAsString(Map.of(
            "client", client, "event", event, "offset", -1, "value", value)));
    }

    static KafkaStreams open(
            JsonNode ways, String state, String name,
            String application, String protocol, String input, String output) {
        StreamsBuilder topology = new StreamsBuilder();
        topology.addStateStore(Stores.keyValueStoreBuilder(
            Stores.inMemoryKeyValueStore("count"), Serdes.String(), Serdes.Long()));
        topology.<String, String>stream(input)
            .processValues(Numbering::new, "count")
            .to(output);
        Properties props = new Properties();
        ways.get(name.split(":")[0]).get("java").properties()
            .forEach(e -> props.put(e.getKey(), e.getValue().asText()));
        props.put("application.id", application);
        props.put("group.protocol", protocol);
        props.put("state.dir", state);
        props.put("processing.guarantee", "exactly_once_v2");
        props.put("num.stream.threads", "1");
        // Streams' own default is 10 s: a machine that is busy takes longer, and the commit fails.
        props.put("producer.transaction.timeout.ms", "120000");
        props.put("consumer.auto.offset.reset", "earliest");
        // Ten transactions a second, its own default, cost more than the records in them.
        props.put("commit.interval.ms", "1000");
        props.put("consumer.fetch.min.bytes", "16384");
        for (String kind : new String[] {"key", "value"}) {
            props.put("default." + kind + ".serde", Serdes.String().getClass().getName());
        }
        KafkaStreams streams = new KafkaStreams(topology.build(), props);
        streams.setUncaughtExceptionHandler(e -> {
            try {
                StringBuilder why = new StringBuilder();
                for (Throwable t = e; t != null; t = t.getCause()) {
                    why.append(t).append("; ");
                }
                tell(name, "ended", why.toString());
            } catch (Exception unprintable) {
                throw new IllegalStateException(unprintable);
            }
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        return streams;
    }

    static class Numbering implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(FixedKeyProcessorContext<String, String> given) {
            context = given;
            counts = given.getStateStore("count");
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            Long before = counts.get("all");
            long number = before == null ? 1 : before + 1;
            counts.put("all", number);
            long offset = context.recordMetadata().orElseThrow().offset();
            String id = record.value().split(" ")[0];
            context.forward(record.withValue(offset + "|" + id + "|" + number));
        }
    }
}
