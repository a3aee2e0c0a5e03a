import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** A transaction on a refused topic fails, is aborted, and the next one elsewhere commits. */
public class AbortableProbe {
    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("transactional.id", args[3]);
        props.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("max.block.ms", "120000");
        props.put("delivery.timeout.ms", "120000");
        props.put("request.timeout.ms", "60000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(props)) {
            producer.initTransactions();
            producer.beginTransaction();
            try {
                producer.send(new ProducerRecord<>(args[1], "refused")).get();
                producer.commitTransaction();
                System.out.println("COMMITTED");
            } catch (ProducerFencedException e) {
                System.out.println("FATAL " + e);
            } catch (KafkaException | ExecutionException e) {
                System.out.println("REFUSED " + e);
                producer.abortTransaction();
                System.out.println("ABORTED");
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(args[2], "elsewhere")).get();
            producer.commitTransaction();
            System.out.println("ELSEWHERE");
        }
    }
}
