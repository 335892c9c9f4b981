//! A flipped bit in an acknowledged entry of one node's log: the node refuses to start and names the place; the others go on
//! without it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ringfence_harness::{Answered, Cluster, Load, Node, granted, try_once, until};
use ringfence_wire::{LeaseId, Token};

use crate::support::{PROGRAM, SOON};

/// The damage may be in the entry of any of these leases.
const LEASES: usize = 8;
/// The size of a sector of a log.
const SECTOR: usize = 512;

#[tokio::test]
#[ignore = "slow"]
async fn a_node_with_a_flipped_bit_in_its_log_refuses_to_start_and_the_others_go_on() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let load = Load::start(&cluster, "load");
    for victim_leads in [true, false] {
        load.more(100).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        let victim = if victim_leads { leader } else { cluster.others(leader.id()).next().unwrap() };
        let mut leases = Vec::new();
        for number in 0..LEASES {
            let (lease, name) = (LeaseId::random(), format!("damaged/{victim_leads}/{number}"));
            let token = token(&cluster, victim, lease, &name).await;
            leases.push((lease, name, token));
        }
        load.more(100).await.unwrap();
        victim.kill().unwrap();

        let (file, at) = find(&victim.data().join("log"), leases.iter().map(|(_, name, _)| name.as_bytes()));
        flip(&file, at);
        let refused = victim.start_in_vain().await.unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", refused.output);
        let place = format!("{} at byte {}:", file.display(), at - at % SECTOR);
        let last = refused.output.lines().last().unwrap();
        assert!(last.starts_with("ringfence: ") && last.contains(&place), "{last}, and not {place}");

        load.more(100).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        let lags = || async {
            let lag = leader.client().cluster().await.done().members[&victim.id()].lag_entries;
            lag.filter(|lag| *lag > 0)
        };
        until(SOON, "the leader sees that it lags", lags).await.unwrap();

        // Undone, nothing is damaged.
        flip(&file, at);
        victim.start().unwrap();
        cluster.ready().await.unwrap();
        for (lease, name, token) in &leases {
            assert_eq!(self::token(&cluster, victim, *lease, name).await, *token);
        }
    }
    load.end().await.check(&cluster).await;
    let leader = cluster.leader().await.unwrap();
    let caught_up = || async {
        let members = leader.client().cluster().await.done().members;
        members.values().all(|member| member.lag_entries == Some(0)).then_some(())
    };
    until(SOON, "no node lags", caught_up).await.unwrap();
}

/// The token under which the lease is granted.
async fn token(cluster: &Cluster, victim: &Node, lease: LeaseId, name: &str) -> Token {
    let client = cluster.others(victim.id()).next().unwrap().client();
    granted(&client, lease, &try_once(name)).await.token
}

/// The file and offset of one of these names in a log. A name may be split by a sector boundary; then another is found.
fn find<'a>(log: &Path, names: impl Iterator<Item = &'a [u8]> + Clone) -> (PathBuf, usize) {
    let mut files = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let find_in = |file: PathBuf| {
        let contents = std::fs::read(&file).unwrap();
        let position = |name: &[u8]| contents.windows(name.len()).position(|window| window == name);
        Some((file, names.clone().find_map(position)?))
    };
    files.find_map(find_in).unwrap_or_else(|| panic!("none of the names is in {}", log.display()))
}

fn flip(file: &Path, at: usize) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at as u64).unwrap();
}
