import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** The requests with which kafka-ui and AKHQ fill their pages: brokers, topics, groups, access control, quotas. */
public class Dashboard {
    interface Call {
        Object get() throws Exception;
    }

    static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    /** The answer, or the name of the error by which a dashboard knows that a feature is missing. */
    static Object orError(Call call) throws Exception {
        try {
            return call.get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof ApiException) {
                return error.getCause().getClass().getSimpleName();
            }
            throw error;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "request.timeout.ms", 30000);
        String topic = arguments[1];
        String group = arguments[2];
        try (Admin admin = Admin.create(settings)) {
            DescribeClusterResult cluster =
                admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            List<Integer> nodes = cluster.nodes().get().stream().map(each -> each.id()).sorted().toList();
            print("nodes", nodes);
            print("controller", nodes.contains(cluster.controller().get().id()));
            print("cluster", !cluster.clusterId().get().isEmpty());
            print("operations", new TreeSet<>(cluster.authorizedOperations().get()));
            print("voters", admin.describeMetadataQuorum().quorumInfo().get().voters().size());
            print("features", new TreeSet<>(admin.describeFeatures().featureMetadata().get().finalizedFeatures().keySet()));

            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + nodes.get(0));
            ConfigResource settingsOf = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            DescribeConfigsOptions all = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
            for (Map.Entry<ConfigResource, Config> each
                : admin.describeConfigs(List.of(broker, settingsOf), all).all().get().entrySet()) {
                String kind = each.getKey().type().name().toLowerCase();
                Config config = each.getValue();
                print(kind + ".configs", config.entries().size() > 10);
                print(kind + ".retention", config.get(kind.equals("topic") ? "retention.ms" : "log.retention.ms").value());
                print(kind + ".documented", config.entries().stream().allMatch(one -> one.documentation() != null));
            }

            Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
            print("topics", new TreeSet<>(names));
            TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            print("isr", described.partitions().stream().map(each -> each.isr().size()).toList());
            print("dirs", admin.describeLogDirs(nodes).allDescriptions().get().entrySet().stream()
                .sorted(Map.Entry.comparingByKey())
                .map(each -> each.getValue().values().stream().flatMap(one -> one.replicaInfos().entrySet().stream())
                    .filter(one -> one.getKey().topic().equals(topic)).filter(one -> one.getValue().size() > 0).count())
                .toList());

            TopicPartition first = new TopicPartition(topic, 0);
            for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(),
                OffsetSpec.forTimestamp(0))) {
                print(spec.getClass().getSimpleName(), admin.listOffsets(Map.of(first, spec)).all().get().get(first).offset());
            }
            print("producers", admin.describeProducers(List.of(first)).all().get().get(first).activeProducers().size());
            print("reassignments", admin.listPartitionReassignments().reassignments().get().size());

            print("groups", admin.listGroups(ListGroupsOptions.forConsumerGroups()).all().get().stream()
                .map(GroupListing::groupId).collect(Collectors.toCollection(TreeSet::new)));
            print("state", admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState());
            print("committed",
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).offset());

            print("acls", orError(() -> admin.describeAcls(AclBindingFilter.ANY).values().get()));
            print("quotas", orError(() -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get()));
            print("users", orError(() -> admin.describeUserScramCredentials().all().get()));
            print("transactions", orError(() -> admin.listTransactions().all().get()));
        }
    }
}
