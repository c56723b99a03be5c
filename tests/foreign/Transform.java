import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The job of tests/e2e/transform_rounds.py with Kafka's own client: Transform BOOTSTRAP NAME.
 * It prints the phases of tests/e2e/transform_jobs.py, and ends when its standard input ends.
 */
public class Transform {
    private static final Duration POLL = Duration.ofMillis(200);

    static void endWithParent() {
        try {
            while (System.in.read() >= 0) {
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    public static void main(String[] arguments) {
        Thread watch = new Thread(Transform::endWithParent);
        watch.setDaemon(true);
        watch.start();
        Map<String, Object> reads = Map.of(
            "bootstrap.servers", arguments[0], "group.id", "transform", "isolation.level", "read_committed",
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "max.poll.records", 100,
            "session.timeout.ms", 2000, "heartbeat.interval.ms", 200);
        Map<String, Object> writes = Map.of(
            "bootstrap.servers", arguments[0], "transactional.id", arguments[1], "transaction.timeout.ms", 10000);
        while (true) {
            try (var producer = new KafkaProducer<>(writes, new StringSerializer(), new StringSerializer());
                var consumer = new KafkaConsumer<>(reads, new StringDeserializer(), new StringDeserializer())) {
                producer.initTransactions();
                consumer.subscribe(List.of("input"));
                while (true) {
                    step(consumer, producer);
                }
            } catch (KafkaException error) {
                // The next producer ends the transaction, and the next consumer begins where it has left the group.
                error.printStackTrace();
            }
        }
    }

    static void step(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer) {
        ConsumerRecords<String, String> records = consumer.poll(POLL);
        if (records.isEmpty()) {
            return;
        }
        ConsumerGroupMetadata group = consumer.groupMetadata();
        System.out.println("begun");
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<String, String> each : records) {
            producer.send(new ProducerRecord<>("output", each.partition(), null, each.value() + "!"));
            ends.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
        }
        producer.flush();
        System.out.println("sent");
        producer.sendOffsetsToTransaction(ends, group);
        System.out.println("offsets");
        producer.commitTransaction();
        System.out.println("committed");
    }
}
