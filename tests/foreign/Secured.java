import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Connects once with each file of properties in a folder: Secured FOLDER TOPIC. For each it prints the file's name and OK or
 * the name of the exception. What it does is the property test.does: write, read (also reads the topic in a group), or renew
 * (writes until it has logged in again on the open connection). With the property test.waits the login runs beside others;
 * max.block.ms limits the time in which it connects.
 */
public class Secured {
    static final String STRINGS = "org.apache.kafka.common.serialization.String";
    static String topic;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        ExecutorService waiting = Executors.newCachedThreadPool();
        try (DirectoryStream<Path> files = Files.newDirectoryStream(Paths.get(arguments[0]), "*.properties")) {
            for (Path file : files) {
                Properties given = new Properties();
                try (InputStream input = new FileInputStream(file.toFile())) {
                    given.load(input);
                }
                String does = (String) given.remove("test.does");
                boolean waits = "true".equals(given.remove("test.waits"));
                String name = file.getFileName().toString().replace(".properties", "");
                Runnable login = () -> System.out.println(name + " " + outcome(given, does));
                if (waits) {
                    waiting.execute(login);
                } else {
                    login.run();
                }
            }
        }
        // The process ends with the last of them.
        waiting.shutdown();
    }

    static String outcome(Properties given, String does) {
        try {
            write(given, does.equals("renew"));
            if (does.equals("read")) {
                read(given);
            }
            return "OK";
        } catch (Throwable error) {
            while (error instanceof ExecutionException) {
                error = error.getCause();
            }
            return error.getClass().getSimpleName();
        }
    }

    static void write(Properties given, boolean renews) throws Exception {
        Properties settings = new Properties();
        settings.put("max.block.ms", "20000");
        settings.putAll(given);
        settings.put("key.serializer", STRINGS + "Serializer");
        settings.put("value.serializer", STRINGS + "Serializer");
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", "20000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(topic, "tea")).get();
            long end = System.nanoTime() + 60_000_000_000L;
            while (renews && renewals(producer) < 1) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("no session was renewed");
                }
                Thread.sleep(100);
                producer.send(new ProducerRecord<>(topic, "tea")).get();
            }
        }
    }

    static double renewals(KafkaProducer<String, String> producer) {
        double renewals = 0;
        for (var metric : producer.metrics().values()) {
            if (metric.metricName().name().equals("successful-reauthentication-total")) {
                renewals += ((Number) metric.metricValue()).doubleValue();
            }
        }
        return renewals;
    }

    static void read(Properties given) {
        Properties settings = new Properties();
        settings.putAll(given);
        settings.put("key.deserializer", STRINGS + "Deserializer");
        settings.put("value.deserializer", STRINGS + "Deserializer");
        settings.put("group.id", "java");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + 30_000_000_000L;
            while (System.nanoTime() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (!records.isEmpty()) {
                    return;
                }
            }
            throw new IllegalStateException("nothing came");
        }
    }
}
