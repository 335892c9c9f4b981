package dev.ringfence.hazelcast;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.JoinConfig;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.config.cp.FencedLockConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.CPGroup;
import com.hazelcast.cp.CPSubsystem;
import com.hazelcast.cp.session.CPSession;
import dev.ringfence.Program;
import java.util.ArrayList;
import java.util.List;

/** Three members of the CP subsystem, in this process. */
final class Hazelcast implements AutoCloseable {
  /** How long a client that has died keeps its locks. It is not to pass while the machine stands still. */
  private static final int SESSION_S = 20;

  private static final int PORT = 5701;
  final String host = Program.address();
  private final List<HazelcastInstance> members = new ArrayList<>();

  Hazelcast() {
    quiet();
    // An address of the loopback interface that it does not list.
    System.setProperty("hazelcast.local.localAddress", host);
    System.setProperty("hazelcast.socket.bind.any", "false");
    for (int id = 0; id < 3; id++) {
      members.add(com.hazelcast.core.Hazelcast.newHazelcastInstance(config(id)));
    }
  }

  private static void quiet() {
    System.setProperty("hazelcast.logging.type", "none");
    System.setProperty("hazelcast.phone.home.enabled", "false");
  }

  private Config config(int id) {
    Config config = new Config();
    config
        .getCPSubsystemConfig()
        .setCPMemberCount(3)
        .setSessionTimeToLiveSeconds(SESSION_S)
        .setSessionHeartbeatIntervalSeconds(2)
        .addLockConfig(new FencedLockConfig("limited", 1));
    NetworkConfig network = config.getNetworkConfig().setPort(PORT + id).setPortAutoIncrement(false);
    JoinConfig join = network.getJoin();
    join.getAutoDetectionConfig().setEnabled(false);
    join.getTcpIpConfig().setEnabled(true);
    for (int other = 0; other < 3; other++) {
      join.getTcpIpConfig().addMember(host + ":" + (PORT + other));
    }
    return config;
  }

  HazelcastInstance client() {
    return client(host);
  }

  static HazelcastInstance client(String host) {
    quiet();
    ClientConfig config = new ClientConfig();
    for (int id = 0; id < 3; id++) {
      config.getNetworkConfig().addAddress(host + ":" + (PORT + id));
    }
    return HazelcastClient.newHazelcastClient(config);
  }

  HazelcastInstance member() {
    return members.get(0);
  }

  /** Ends the session of a client, as if it had not been heard of for long. */
  void endSession(HazelcastInstance client) throws Exception {
    CPSubsystem cp = member().getCPSubsystem();
    String group = CPGroup.DEFAULT_GROUP_NAME;
    for (CPSession session : cp.getCPSessionManagementService().getAllSessions(group).toCompletableFuture().get()) {
      if (client.getName().equals(session.endpointName())) {
        cp.getCPSessionManagementService().forceCloseSession(group, session.id()).toCompletableFuture().get();
      }
    }
  }

  @Override
  public void close() {
    HazelcastClient.shutdownAll();
    members.forEach(member -> member.getLifecycleService().terminate());
  }
}
