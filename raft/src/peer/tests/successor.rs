//! Connections that are replaced by others.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use ringfence_tls::{Look, Peer, Reload, Unrelated};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::peer::Tls;
use crate::peer::call::CallLink;

/// After this time, a stale connection has been replaced, and the next one, too, if that is stale.
const LOOKS: Duration = Duration::from_secs(5);

struct Ends {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
    /// The files of node 1.
    own: Arc<Peer>,
    directory: Arc<Directory>,
    /// Node 1's. Kept, as it must not be dropped.
    _own_transport: Arc<dyn Transport>,
    /// Node 1 calls node 2 here.
    transport: Arc<dyn Transport>,
}

impl Ends {
    async fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = TempDir::new().unwrap();
        let load = |id| {
            write(dir.path(), id, &authority);
            let [certificate, key] = ["pem", "key"].map(|end| dir.path().join(format!("{id}.{end}")));
            let of_nodes = dir.path().join("authority.pem");
            Arc::new(Peer::load(certificate, key, of_nodes, &Unrelated::default(), |_| true).unwrap())
        };
        fs::write(dir.path().join("authority.pem"), authority.pem()).unwrap();
        let (own, other) = (load(1), load(2));
        let tls = async |peer: &Arc<Peer>| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let transport: Arc<dyn Transport> =
                Arc::new(Tls::new(listener, Arc::clone(peer), false, Handle::current));
            (transport, address)
        };
        let ((own_transport, _), (transport, address)) = (tls(&own).await, tls(&other).await);
        let (incarnation, starts) = (Uuid::from_u128(1), Starts::default());
        let identity = Identity { node_id: 1, incarnation, cluster: None, founder: false, starts };
        let addresses = BTreeMap::from([(2, address)]);
        let program = Program::of_this(SUPPORTED);
        let directory = Arc::new(Directory::new(identity, String::new(), addresses, &own_transport, program));
        Self { dir, authority, own, directory, _own_transport: own_transport, transport }
    }

    fn link(&self, channel: Channel) -> CallLink {
        let target = Target { to: 2, incarnation: Some(Uuid::from_u128(2)), channel };
        CallLink::start(Arc::clone(&self.directory), Command::since, target, &Handle::current())
    }

    /// Node 1 gets another certificate.
    fn renew(&self) {
        write(self.dir.path(), 1, &self.authority);
        assert_eq!(self.own.look(true), Look::Loaded);
    }
}

fn write(dir: &Path, id: u64, authority: &CertifiedIssuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(SanType::URI(format!("ringfence:node:{id}").try_into().unwrap()));
    let key = KeyPair::generate().unwrap();
    fs::write(dir.join(format!("{id}.pem")), params.signed_by(&key, authority).unwrap().pem()).unwrap();
    fs::write(dir.join(format!("{id}.key")), key.serialize_pem()).unwrap();
}

/// All calls once waited for the answers that the old connection owed. A change of the members may take 10 s.
#[tokio::test]
async fn a_call_that_takes_long_holds_up_no_others_when_its_connection_is_replaced() {
    let ends = Ends::new().await;
    let link = ends.link(Channel::Forwards);
    let long = link.send(Call::ReadIndex).unwrap();
    let (mut old, _) = welcome(&ends.transport).await;
    ends.renew();
    let (mut new, _) = welcome(&ends.transport).await;
    let answered = async {
        loop {
            let asked = link.send(Call::ReadIndex).unwrap();
            if let Ok(answer) = timeout(LOOKS, asked.answer_before(std::future::pending())).await {
                return answer;
            }
        }
    };
    let (answer_of_new, ()) =
        timeout(SOON, async { tokio::join!(answered, answer(&mut new, Answer::NotDone)) }).await.unwrap();
    assert_eq!(answer_of_new.unwrap(), Answer::NotDone);
    answer(&mut old, Answer::Unknown).await;
    assert_eq!(long.answer_before(std::future::pending()).await.unwrap(), Answer::Unknown);
    // The old connection answers the calls that it got before the new one was there, and then it ends.
    while let Some((_, body)) = timeout(SOON, old.reader.next()).await.unwrap().unwrap() {
        let (number, _) = get_numbered::<Call>(body).unwrap();
        old.writer.put(ANSWER, |out| put_numbered(out, number, &Answer::Unknown));
        old.writer.flush().await.unwrap();
    }
}

/// Nothing is known of a node before the cluster is founded. This once counted as another certificate.
#[tokio::test]
async fn a_connection_to_a_node_that_is_not_known_yet_is_not_stale() {
    let ends = Ends::new().await;
    let link = ends.link(Channel::Founding);
    let _asked = link.send(Call::Probe).unwrap();
    let (_end, _) = welcome(&ends.transport).await;
    assert!(timeout(LOOKS, ends.transport.accept()).await.is_err());
}

/// Calls once still went to a node that this node no longer trusts, as long as that node sent nothing.
#[tokio::test]
async fn a_connection_to_what_is_no_longer_trusted_ends_though_nothing_happens_on_it() {
    let ends = Ends::new().await;
    let link = ends.link(Channel::Forwards);
    let asked = link.send(Call::ReadIndex).unwrap();
    let (mut end, _) = welcome(&ends.transport).await;
    answer(&mut end, Answer::NotDone).await;
    asked.answer_before(std::future::pending()).await.unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let other = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(ends.dir.path().join("authority.pem"), other.pem()).unwrap();
    assert_eq!(ends.own.look(true), Look::Loaded);
    assert!(timeout(SOON, end.reader.next()).await.unwrap().unwrap().is_none());
}
