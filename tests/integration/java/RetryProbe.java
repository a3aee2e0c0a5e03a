import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Idempotent producers that wait for minutes for an answer, and tell the offset of each record. */
public class RetryProbe {
    public static void main(String[] args) {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("linger.ms", "500");
        props.put("request.timeout.ms", "500000");
        props.put("delivery.timeout.ms", "900000");
        props.put("metadata.max.age.ms", "900000");
        props.put("connections.max.idle.ms", "900000");
        Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
        Scanner commands = new Scanner(System.in);
        while (commands.hasNextLine()) {
            String[] words = commands.nextLine().split(" ");
            String name = words[1];
            KafkaProducer<String, String> producer =
                    producers.computeIfAbsent(name, one -> new KafkaProducer<>(props));
            if (words[0].equals("send")) {
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    String value = name + "-" + i;
                    producer.send(
                            new ProducerRecord<>(args[1], 0, null, value),
                            (sent, error) -> {
                                if (error != null) {
                                    tell("told", name, -1, value + " " + error);
                                } else {
                                    tell("acked", name, sent.offset(), value);
                                }
                            });
                }
            } else {
                producer.flush();
            }
            tell("answer", name, -1, words[0]);
        }
    }

    private static synchronized void tell(String event, String client, long offset, String value) {
        System.out.printf(
                "{\"event\": \"%s\", \"client\": \"%s\", \"offset\": %d, \"value\": \"%s\"}%n",
                event, client, offset, value.replace('"', '\'').replace('\\', '/'));
        System.out.flush();
    }
}
