import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** `Fetched member ID IP`: a member of three. `Fetched clients IP`: clients of theirs, as in `bench/src/service/hazelcast.rs`. */
public class Fetched {
    private static final int PORT = 5701;

    public static void main(String[] arguments) throws Exception {
        System.setProperty("hazelcast.logging.type", "none");
        System.setProperty("hazelcast.phone.home.enabled", "false");
        if (arguments[0].equals("member")) {
            member(Integer.parseInt(arguments[1]), arguments[2]);
        } else {
            clients(arguments[1]);
        }
    }

    private static void member(int id, String ip) {
        // An address of the loopback interface that it does not list.
        System.setProperty("hazelcast.local.localAddress", ip);
        System.setProperty("hazelcast.socket.bind.any", "false");
        var config = new Config();
        config.getCPSubsystemConfig().setCPMemberCount(3);
        var network = config.getNetworkConfig().setPort(PORT + id).setPortAutoIncrement(false);
        var join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getTcpIpConfig().setEnabled(true);
        for (var other = 0; other < 3; other++) {
            join.getTcpIpConfig().addMember(ip + ":" + (PORT + other));
        }
        Hazelcast.newHazelcastInstance(config);
    }

    /** A client of all members. It asks any of them, and that one asks the leader: this version's client cannot ask the leader itself. */
    private static HazelcastInstance connect(String ip) {
        var config = new ClientConfig();
        for (var id = 0; id < 3; id++) {
            config.getNetworkConfig().addAddress(ip + ":" + (PORT + id));
        }
        // A thread of each kind for a client, not one for each core.
        config.setProperty("hazelcast.client.io.input.thread.count", "1");
        config.setProperty("hazelcast.client.io.output.thread.count", "1");
        config.setProperty("hazelcast.client.event.thread.count", "1");
        config.setProperty("hazelcast.client.response.thread.count", "0");
        return HazelcastClient.newHazelcastClient(config);
    }

    private static void clients(String ip) throws Exception {
        var shared = connect(ip);
        var all = new HashMap<String, BlockingQueue<String[]>>();
        var requests = new BufferedReader(new InputStreamReader(System.in));
        for (var line = requests.readLine(); line != null; line = requests.readLine()) {
            var words = line.split(" ");
            all.computeIfAbsent(words[0], id -> start(id, ip, shared)).add(words);
            if (words[1].equals("close")) {
                all.remove(words[0]);
            }
        }
        // Threads may still wait for locks.
        System.exit(0);
    }

    /** A lock is held by a thread: each client has its own. */
    private static BlockingQueue<String[]> start(String id, String ip, HazelcastInstance shared) {
        var requests = new LinkedBlockingQueue<String[]>();
        var thread = new Thread(() -> {
            HazelcastInstance client = null;
            FencedLock held = null;
            while (true) {
                var answer = id;
                try {
                    var words = requests.take();
                    switch (words[1]) {
                        case "open" -> client = connect(ip);
                        case "share" -> client = shared;
                        case "acquire" -> {
                            held = client.getCPSubsystem().getLock(words[2]);
                            held.lock();
                        }
                        case "release" -> held.unlock();
                        default -> {
                            if (client != shared) {
                                client.shutdown();
                            }
                            return;
                        }
                    }
                } catch (Exception error) {
                    answer += " " + error.toString().replace('\n', ' ');
                }
                System.out.println(answer);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return requests;
    }
}
