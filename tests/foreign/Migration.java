import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of one group, each a consumer of its own: Migration BOOTSTRAP TOPIC GROUP STRATEGY. STRATEGY is a class of
 * partition.assignment.strategy, or default.
 *
 * It reads one command a line: "join NAME PROTOCOL" (the group.protocol), "leave NAME", "describe". It prints one line for each
 * record ("read NAME PARTITION OFFSET"), for each answer to describe ("group TYPE STATE NAME=UPGRADED:PARTITIONS ..."), for each
 * member that has left ("left NAME") and for each error ("failed NAME ERROR"). It ends when its standard input ends.
 */
public class Migration {
    private static final Duration POLL = Duration.ofMillis(100);

    /** Commits after each poll, and what it gives up. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        private final Map<String, Object> settings;
        private final String topic;
        private volatile boolean leaves;
        private KafkaConsumer<String, String> consumer;
        private boolean owesCommit;

        Member(String name, Map<String, Object> settings, String topic) {
            super(name);
            this.settings = settings;
            this.topic = topic;
        }

        @Override
        public void run() {
            try (var made = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                consumer = made;
                consumer.subscribe(List.of(topic), this);
                while (!leaves || owesCommit) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    for (ConsumerRecord<String, String> each : records) {
                        System.out.println("read " + getName() + " " + each.partition() + " " + each.offset());
                    }
                    owesCommit |= !records.isEmpty();
                    commit();
                }
            } catch (KafkaException error) {
                System.out.println("failed " + getName() + " " + error);
            }
            System.out.println("left " + getName());
        }

        private void commit() {
            if (!owesCommit) {
                return;
            }
            try {
                consumer.commitSync();
                owesCommit = false;
            } catch (RebalanceInProgressException error) {
                // As its documentation says: the next poll completes the rebalance, then the commit is repeated.
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            System.out.println("failed " + getName() + " lost " + partitions);
        }
    }

    static String shown(Admin admin, String group) throws InterruptedException {
        ConsumerGroupDescription found;
        try {
            found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        } catch (ExecutionException error) {
            // The group changes its type at this moment, or its coordinator.
            return "group none " + error.getCause().getClass().getSimpleName();
        }
        Map<String, String> members = new TreeMap<>();
        for (MemberDescription each : found.members()) {
            String upgraded = each.upgraded().map(String::valueOf).orElse("-");
            members.put(each.clientId(), upgraded + ":" + each.assignment().topicPartitions().size());
        }
        StringBuilder line = new StringBuilder("group " + found.type() + " " + found.groupState());
        members.forEach((name, each) -> line.append(" ").append(name).append("=").append(each));
        return line.toString();
    }

    public static void main(String[] arguments) throws Exception {
        String group = arguments[2];
        Map<String, Member> members = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            String line;
            while ((line = commands.readLine()) != null) {
                String[] words = line.split(" ");
                switch (words[0]) {
                    case "join" -> {
                        Map<String, Object> settings = new HashMap<>(Map.of(
                            "bootstrap.servers", arguments[0], "group.id", group, "client.id", words[1],
                            "group.protocol", words[2], "auto.offset.reset", "earliest", "enable.auto.commit", false));
                        if (words[2].equals("classic")) {
                            // The session is left at 45 s: a stalled machine must not end it. Short intervals make the steps quick.
                            settings.put("heartbeat.interval.ms", 300);
                            if (!arguments[3].equals("default")) {
                                settings.put("partition.assignment.strategy", arguments[3]);
                            }
                        }
                        Member member = new Member(words[1], settings, arguments[1]);
                        members.put(words[1], member);
                        member.start();
                    }
                    case "leave" -> members.get(words[1]).leaves = true;
                    case "describe" -> System.out.println(shown(admin, group));
                    default -> throw new IllegalArgumentException(line);
                }
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
