//! Clients whose URLs have a path, as those of a gateway do.

use std::process::Output;
use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, Revision};
use ringfence_harness::{Cluster, Node, Proxy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{PROGRAM, SOON};

const LONG: Duration = Duration::from_secs(86_400);

/// A gateway that has `node` under `/ringfence/`, and nothing else.
async fn gateway(node: &Node) -> Proxy {
    let http = node.http();
    let serve = move |client: TcpStream| async move {
        let (from_client, mut to_client) = client.into_split();
        let (mut from_node, mut to_node) = TcpStream::connect(http).await?.into_split();
        let answers = async { copy(&mut from_node, &mut to_client).await.map(drop) };
        tokio::select! {
            ended = answers => ended,
            ended = pass_on(BufReader::new(from_client), &mut to_node) => ended,
        }
    };
    Proxy::open(serve).await.unwrap()
}

/// Passes requests on, without the gateway's path. Ends with the first that is of no path below it.
async fn pass_on(
    mut client: BufReader<impl AsyncReadExt + Unpin>,
    node: &mut (impl AsyncWriteExt + Unpin),
) -> std::io::Result<()> {
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begins = head.len();
            if client.read_line(&mut head).await? == 0 {
                return Ok(());
            }
            if let Some(value) = head[begins..].strip_prefix("content-length: ") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let Some((method, rest)) = head.split_once(" /ringfence/") else { return Ok(()) };
        if method.contains(' ') {
            return Ok(());
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body).await?;
        node.write_all(&[format!("{method} /{rest}").as_bytes(), &body].concat()).await?;
    }
}

async fn ringfence(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    let command = command.env("RINGFENCE_URLS", url).args(arguments).kill_on_drop(true);
    timeout(SOON, command.output()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_cluster_behind_a_gateway_is_used_under_its_path() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let follower = cluster.others(leader.id()).next().unwrap();
    let proxy = gateway(follower).await;
    let gateway = proxy.url();
    for url in [format!("{gateway}/ringfence"), format!("{gateway}/ringfence/")] {
        let client = Client::connect([&url]).unwrap();
        let lease = client.lock("a b/ä").ttl(LONG).acquire().await.unwrap();
        assert_eq!(client.key("a b/ä", Consistency::Linearizable).await.unwrap().holders.len(), 1);
        let mut watch = client.watch("").after(Revision(lease.token().0 - 1));
        assert_eq!(timeout(SOON, watch.next()).await.unwrap().unwrap().change.token, Some(lease.token()));
        lease.release().await.unwrap();
        let locked = ringfence(&url, &["lock", "a", "--", "sh", "-c", "echo $RINGFENCE_TOKEN"]).await;
        assert!(locked.status.success() && locked.stdout.len() > 1, "{locked:?}");
        let status = ringfence(&url, &["cluster", "status"]).await;
        assert!(status.status.success(), "{status:?}");
    }
    let elsewhere = Client::connect([format!("{gateway}/other")]).unwrap();
    assert!(matches!(elsewhere.cluster().await, Err(Error::Unavailable { .. })));
}
