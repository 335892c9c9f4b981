//! A network for the nodes of one cluster, each in a namespace of its own, that can silently drop the packets from one
//! node to another.
//!
//! ```text
//!  node 1: eth0 10.0.0.1 ── n1 ┐
//!  node 2: eth0 10.0.0.2 ── n2 ┤ bridge 10.0.0.254 ◀── clients
//!  node 3: eth0 10.0.0.3 ── n3 ┘
//! ```
//! The bridge forwards from port to port unless the pair is in the set `cut`. Clients have no port: they always reach every
//! node that is not in the set `gone`. Namespaces have no names and nothing is added to the machine's, so any number of
//! such networks exist at once, all with the same addresses, and they end with the test program, however that ends.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use rustix::process::geteuid;
use tokio::net::{TcpSocket, TcpStream};

use crate::namespace::Namespace;
use crate::{Client, Error};

/// Drops only IP, so that neighbour tables stay as they are.
const RULES: &str = "
    table bridge faults {
        set cut { type ifname . ifname; }
        set lossy { type ifname . ifname; }
        set narrow { type ifname . ifname; }
        set short { type ifname . ifname; }
        set gone { type ifname; }
        set shut { type ifname . inet_service; }
        chain forward {
            type filter hook forward priority filter;
            ether type ip iifname . oifname @cut counter drop
            ether type ip iifname . oifname @lossy numgen random mod 100 < 25 counter drop
            ether type ip iifname . oifname @narrow ip length > 300 counter drop
            ether type ip iifname . oifname @short ip length > 1300 counter drop
            ether type ip iifname @gone counter drop
            ether type ip oifname @gone counter drop
            ether type ip oifname . tcp dport @shut counter drop
        }
        chain from_node {
            type filter hook input priority filter;
            ether type ip iifname @gone counter drop
        }
        chain to_node {
            type filter hook output priority filter;
            ether type ip oifname @gone counter drop
            ether type ip oifname . tcp dport @shut counter drop
        }
    }";

/// The network of one cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct Network {
    bridge: Arc<Namespace>,
    nodes: Vec<Arc<Namespace>>,
}

impl Network {
    /// A network for `nodes` nodes, from 1 to 9; [`Error::Unavailable`] where this machine does not allow it.
    pub fn new(nodes: u16) -> Result<Self, Error> {
        let unavailable = |why: String| Error::Unavailable(why);
        if !geteuid().is_root() {
            return Err(unavailable("needs root".to_owned()));
        }
        let namespace = || Namespace::new().map(Arc::new);
        let bridge = namespace().map_err(|error| unavailable(format!("no network namespaces: {error}")))?;
        bridge
            .run(Command::new("nft").args(["-f", "-"]), RULES)
            .map_err(|error| unavailable(format!("no rules for a bridge: {error}")))?;
        let nodes = (0..nodes.clamp(1, 9)).map(|_| namespace()).collect::<Result<_, _>>();
        let network = Self { bridge, nodes: nodes.map_err(Error::io("cannot make a network namespace"))? };
        network.connect()?;
        Ok(network)
    }

    /// Drops what the first node of each pair sends to the second, from now on.
    pub fn cut(&self, pairs: &[(u64, u64)]) -> Result<(), Error> {
        self.add("cut", pairs)
    }

    /// Drops a quarter of all packets that the first node of each pair sends to the second, from now on.
    pub fn lose(&self, pairs: &[(u64, u64)]) -> Result<(), Error> {
        self.add("lossy", pairs)
    }

    /// Drops the packets of more than 300 bytes that the first node of each pair sends to the second, from now on:
    /// connections open and stay open, but their data does not arrive.
    pub fn narrow(&self, pairs: &[(u64, u64)]) -> Result<(), Error> {
        self.add("narrow", pairs)
    }

    /// Drops the packets of more than 1,300 bytes that the first node of each pair sends to the second, from now on, as where
    /// a path carries less than its ends believe, and does not tell them.
    pub fn shorten(&self, pairs: &[(u64, u64)]) -> Result<(), Error> {
        self.add("short", pairs)
    }

    /// Drops all that node `id` sends and is sent, also by clients, from now on: as if its machine had lost its power.
    pub fn vanish(&self, id: u64) -> Result<(), Error> {
        self.node(id)?;
        self.nft(&format!("add element bridge faults gone {{ n{id} }}"))
    }

    /// Drops what is sent to these TCP ports of node `id`, also by clients, from now on, as a firewall that lets in replies only. What the
    /// node itself opens works.
    pub fn shut(&self, id: u64, ports: &[u16]) -> Result<(), Error> {
        self.node(id)?;
        let elements: Vec<String> = ports.iter().map(|port| format!("n{id} . {port}")).collect();
        self.nft(&format!("add element bridge faults shut {{ {} }}", elements.join(", ")))
    }

    /// A command that runs `program` where clients are, outside of all nodes.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.bridge.command(program)
    }

    /// A command that runs `program` at the place of node `id`, where none need be: as on a machine of its own.
    pub fn command_at(&self, id: u64, program: impl AsRef<OsStr>) -> Result<Command, Error> {
        Ok(self.node(id)?.command(program))
    }

    /// Drops what the nodes of each side send to those of the other, from now on.
    pub fn part(&self, left: &[u64], right: &[u64]) -> Result<(), Error> {
        self.cut(&[pairs(left, right), pairs(right, left)].concat())
    }

    /// Drops what `id` and the other nodes send to each other, from now on.
    pub fn isolate(&self, id: u64) -> Result<(), Error> {
        let others: Vec<u64> = (1..=self.nodes.len() as u64).filter(|other| *other != id).collect();
        self.part(&[id], &others)
    }

    /// Undoes all of the above.
    pub fn heal(&self) -> Result<(), Error> {
        self.mend()?;
        let sets =
            ["lossy", "narrow", "short", "gone", "shut"].map(|set| format!("flush set bridge faults {set}"));
        self.nft(&sets.join("; "))
    }

    /// Undoes [`Network::cut`] alone.
    pub fn mend(&self) -> Result<(), Error> {
        self.nft("flush set bridge faults cut")
    }

    /// Undoes [`Network::lose`] alone.
    pub fn lose_nothing(&self) -> Result<(), Error> {
        self.nft("flush set bridge faults lossy")
    }

    /// Undoes [`Network::narrow`] alone.
    pub fn widen(&self) -> Result<(), Error> {
        self.nft("flush set bridge faults narrow")
    }

    /// The number of packets dropped so far.
    pub fn dropped(&self) -> Result<u64, Error> {
        let rules = self.bridge.run(Command::new("nft").args(["list", "ruleset"]), "");
        let rules = rules.map_err(Error::io("cannot count what was dropped"))?;
        let counts = rules.split("counter packets ").skip(1);
        Ok(counts.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// A connection of node `id` to `to`.
    pub async fn connect_from(&self, id: u64, to: SocketAddr) -> io::Result<TcpStream> {
        let node = self.node(id).map_err(io::Error::other)?;
        // A socket stays in the namespace that it was made in.
        node.inside(TcpSocket::new_v4)?.connect(to).await
    }

    /// The open TCP connections of node `id` with node `with`.
    pub fn connections(&self, id: u64, with: u64) -> Result<usize, Error> {
        let mut ss = Command::new("ss");
        ss.args(["-Htn", "state", "established", "dst", &ip(with).to_string()]);
        let listed = self.node(id)?.run(&mut ss, "").map_err(Error::io("cannot list connections"))?;
        Ok(listed.lines().count())
    }

    pub(crate) fn ip(&self, id: u64) -> IpAddr {
        ip(id).into()
    }

    /// A client of `address`, outside of all nodes.
    pub(crate) fn client(&self, address: SocketAddr) -> Client {
        Client::inside(&self.bridge, address)
    }

    pub(crate) fn node(&self, id: u64) -> Result<&Arc<Namespace>, Error> {
        let index = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
        let node = index.and_then(|index| self.nodes.get(index));
        node.ok_or_else(|| Error::Failed(format!("node {id} is not in the network")))
    }

    fn connect(&self) -> Result<(), Error> {
        let failed = || Error::io("cannot connect the namespaces");
        let batch = || {
            let mut ip = Command::new("ip");
            ip.args(["-batch", "-"]);
            ip
        };
        let mut ports = String::from(
            "link add bridge type bridge\n addr add 10.0.0.254/24 dev bridge\n link set bridge up\n",
        );
        for (id, node) in (1..).zip(&self.nodes) {
            let path = node.path();
            ports += &format!("link add n{id} type veth peer name eth0 netns {path}\n");
            ports += &format!("link set n{id} master bridge up\n");
        }
        self.bridge.run(&mut batch(), &ports).map_err(failed())?;
        for (id, node) in (1..).zip(&self.nodes) {
            let address = ip(id);
            let links = format!("link set lo up\n addr add {address}/24 dev eth0\n link set eth0 up\n");
            node.run(&mut batch(), &links).map_err(failed())?;
        }
        Ok(())
    }

    fn add(&self, set: &str, pairs: &[(u64, u64)]) -> Result<(), Error> {
        for (from, to) in pairs {
            self.node(*from)?;
            self.node(*to)?;
        }
        let elements: Vec<String> = pairs.iter().map(|(from, to)| format!("n{from} . n{to}")).collect();
        match elements.is_empty() {
            true => Ok(()),
            false => self.nft(&format!("add element bridge faults {set} {{ {} }}", elements.join(", "))),
        }
    }

    fn nft(&self, command: &str) -> Result<(), Error> {
        let done = self.bridge.run(Command::new("nft").arg(command), "");
        done.map(drop).map_err(Error::io("cannot change what is cut"))
    }
}

fn ip(id: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, id as u8)
}

fn pairs(from: &[u64], to: &[u64]) -> Vec<(u64, u64)> {
    from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    fn network(nodes: u16) -> Option<Network> {
        crate::available(Network::new(nodes))
    }

    fn socket(network: &Network, id: u64) -> UdpSocket {
        let address = SocketAddr::from((ip(id), 0));
        let socket = network.node(id).unwrap().inside(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// Whether what node `from` sends arrives: the first packet is dropped, or arrives first.
    fn passes(network: &Network, from: u64, to: u64) -> bool {
        arrives(network, &socket(network, from), &socket(network, to), b"first")
    }

    fn arrives(network: &Network, sender: &UdpSocket, receiver: &UdpSocket, first: &[u8]) -> bool {
        let address = receiver.local_addr().unwrap();
        sender.send_to(first, address).unwrap();
        network.heal().unwrap();
        sender.send_to(b"last", address).unwrap();
        let mut bytes = [0; 2_000];
        let mut received = || receiver.recv(&mut bytes).map(|length| bytes[..length].to_vec()).unwrap();
        let arrives = received() == first;
        if arrives {
            assert_eq!(received(), b"last");
        }
        arrives
    }

    #[test]
    fn what_is_cut_one_way_passes_the_other_way() {
        let Some(network) = network(3) else { return };
        for (from, to) in pairs(&[1, 2, 3], &[1, 2, 3]) {
            assert!(passes(&network, from, to));
        }
        for (from, to, arrives) in [(1, 2, false), (2, 1, true), (1, 3, true)] {
            network.cut(&[(1, 2)]).unwrap();
            assert_eq!(passes(&network, from, to), arrives, "{from} to {to}");
        }
        for (from, to, arrives) in [(1, 2, false), (2, 1, false), (3, 1, false), (3, 2, true)] {
            network.isolate(1).unwrap();
            assert_eq!(passes(&network, from, to), arrives, "{from} to {to}");
        }
        network.cut(&[(1, 4)]).unwrap_err();
    }

    #[test]
    fn large_packets_alone_are_dropped_where_the_path_is_short() {
        let Some(network) = network(2) else { return };
        let (sender, receiver) = (socket(&network, 1), socket(&network, 2));
        for (bytes, arrive) in [(1_000, true), (1_400, false)] {
            network.shorten(&[(1, 2)]).unwrap();
            assert_eq!(arrives(&network, &sender, &receiver, &vec![7; bytes]), arrive, "{bytes}");
        }
    }

    #[test]
    fn a_node_that_has_vanished_is_lost_to_nodes_and_clients() {
        let Some(network) = network(2) else { return };
        let client = network.bridge.inside(|| UdpSocket::bind("10.0.0.254:0")).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (one, two) = (socket(&network, 1), socket(&network, 2));
        for (from, to, arrive) in [
            (&one, &two, false),
            (&two, &one, false),
            (&client, &one, false),
            (&one, &client, false),
            (&client, &two, true),
        ] {
            // Else the first packet waits until its sender has the address of the link, which is dropped, too.
            assert!(arrives(&network, from, to, b"before"));
            network.vanish(1).unwrap();
            assert_eq!(arrives(&network, from, to, b"first"), arrive, "{from:?} to {to:?}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_shut_takes_no_connection_and_what_its_node_opens_works() {
        let Some(network) = network(2) else { return };
        let listen = |id| {
            network
                .node(id)
                .unwrap()
                .inside(|| std::net::TcpListener::bind(SocketAddr::from((ip(id), 0))))
                .unwrap()
        };
        let (one, two) = (listen(1), listen(2));
        let (to_one, to_two) = (one.local_addr().unwrap(), two.local_addr().unwrap());
        network.connect_from(2, to_one).await.unwrap();
        network.shut(1, &[to_one.port()]).unwrap();
        let connecting =
            tokio::time::timeout(Duration::from_millis(500), network.connect_from(2, to_one)).await;
        assert!(connecting.is_err(), "{connecting:?}");
        network.connect_from(1, to_two).await.unwrap();
        network.heal().unwrap();
        network.connect_from(2, to_one).await.unwrap();
    }

    #[test]
    fn networks_are_apart_and_add_nothing_to_the_network_of_the_machine() {
        let links = || std::fs::read_to_string("/proc/self/net/dev").unwrap().lines().count();
        let before = links();
        let Some((one, other)) = network(2).zip(network(2)) else { return };
        one.isolate(1).unwrap();
        assert!(passes(&other, 1, 2));
        assert_eq!(links(), before);
    }
}
