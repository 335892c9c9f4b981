use std::collections::VecDeque;

use futures_util::FutureExt;

use super::table::UNUSED_FOR;
use super::*;

const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Admits a connection, which must not wait.
fn admit(connections: &Arc<Connections>) -> Option<Admitted> {
    connections.admit(FROM).now_or_never().expect("few evicted connections are open")
}

/// Begins a request, which must not wait.
fn begin(connection: &Arc<Connection>) -> InFlight {
    connection.begin().now_or_never().expect("all earlier responses are sent")
}

/// Whether it must be closed now.
async fn is_closed(connection: &Connection) -> bool {
    timeout_at(Instant::now(), connection.until_closed()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_connection_is_evicted_and_never_one_with_a_request() {
    let connections = Connections::new(3);
    let enter = || admit(&connections).map(|admitted| (Arc::clone(&admitted.0), admitted));
    let [(first, _first), (second, second_admitted), (third, _third)] = [0; 3].map(|_| enter().unwrap());
    let request = begin(&first);
    third.received();
    let (fourth, _fourth) = enter().unwrap();
    assert!(!is_closed(&first).await && is_closed(&second).await && !is_closed(&third).await);
    drop(second_admitted);
    assert_eq!(connections.count(), (3, 3));

    // The rest of its head arrives just after it was evicted.
    let (fifth, _fifth) = enter().unwrap();
    let late = begin(&third);
    assert!(!is_closed(&third).await);
    assert_eq!(connections.count(), (4, 3));

    let [of_fourth, of_fifth] = [begin(&fourth), begin(&fifth)];
    assert!(enter().is_none(), "all have a request");
    // A response that is being sent still counts as a request.
    request.respond();
    drop(request);
    assert!(enter().is_none());
    first.flushed();
    // One too many is open, and stays so.
    let (_sixth, _sixth_admitted) = enter().unwrap();
    assert!(is_closed(&first).await);
    late.respond();
    drop(late);
    third.flushed();
    assert!(!is_closed(&third).await);
    assert_eq!(connections.count(), (4, 3));
    drop((of_fourth, of_fifth));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_body_does_not_arrive_is_evicted() {
    let connections = Connections::new(2);
    let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
    let (_request, late) = (begin(&first.0), begin(&second.0));
    assert!(admit(&connections).is_none(), "handlers work on both requests");
    first.0.waits_for_body();
    second.0.waits_for_body();
    tokio::time::advance(Duration::from_millis(BODY_TURN_MS)).await;
    // Some of it has arrived.
    first.0.waits_for_body();
    let third = admit(&connections).unwrap();
    assert!(!is_closed(&first.0).await && is_closed(&second.0).await);
    // It is not closed if it was answered just before.
    late.respond();
    assert!(!is_closed(&second.0).await);
    assert_eq!(connections.count(), (3, 2));
    let _request = begin(&third.0);
    first.0.received_body();
    assert!(admit(&connections).is_none(), "all of the body has arrived");
}

/// Regression: the table lost count of evicted connections that stayed, until the node accepted nothing.
#[tokio::test(start_paused = true)]
async fn evicted_connections_that_stay_are_counted_once() {
    let connections = Connections::new(2);
    let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
    for _ in 0..2 * MAX_EVICTING {
        for evicted in [&first, &second] {
            let new = admit(&connections).unwrap();
            let request = begin(&evicted.0);
            drop(new);
            assert_eq!(connections.count(), (2, 2));
            request.respond();
            drop(request);
            evicted.0.flushed();
        }
    }
    let table = connections.table();
    assert_eq!((table.open, table.count()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_response_that_takes_long_to_read_is_given_up_for_a_new_connection() {
    let connections = Connections::new(2);
    let answer = |admitted: &Admitted| {
        let request = begin(&admitted.0);
        request.respond();
        drop(request);
        admitted.0.blocked();
    };
    let (first, second) = (admit(&connections).unwrap(), admit(&connections).unwrap());
    let handled = begin(&first.0);
    answer(&second);
    assert!(admit(&connections).is_none(), "the client may be about to read");
    tokio::time::advance(UNREAD_FOR / 2).await;
    // Clients that read a little now and then, or ask for more, once held all connections.
    second.0.sent();
    second.0.blocked();
    second.0.flushed();
    answer(&second);
    drop(handled);
    first.0.flushed();
    answer(&first);
    tokio::time::advance(UNREAD_FOR / 2).await;
    let third = admit(&connections).unwrap();
    assert!(!is_closed(&first.0).await && is_closed(&second.0).await);
    // The client reads all of it after all, but the connection has been counted as closing.
    second.0.flushed();
    assert!(!is_closed(&second.0).await);
    tokio::time::advance(UNREAD_FOR).await;
    second.0.received();
    answer(&second);
    assert!(second.0.state().unread_since.elapsed().is_zero(), "what was long ago is forgiven");
    drop((first, second, third));
    assert!(connections.table().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_reads_is_not_given_up_because_it_is_old() {
    let connections = Connections::new(1);
    let watch = admit(&connections).unwrap();
    let request = begin(&watch.0);
    watch.0.lasts();
    request.respond();
    for _ in 0..2 {
        tokio::time::advance(UNREAD_FOR).await;
        watch.0.blocked();
        assert!(admit(&connections).is_none());
        watch.0.sent();
        watch.0.flushed();
    }
    watch.0.blocked();
    tokio::time::advance(UNREAD_FOR).await;
    assert!(admit(&connections).is_some());
    drop(request);
}

#[tokio::test(start_paused = true)]
async fn a_crowded_host_loses_requests_that_last_if_there_is_nothing_else() {
    let connections = Connections::new(5);
    let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
    let (one, other) = ("10.0.0.1:1", "10.0.0.2:1");
    let idle = from("10.0.0.3:1").unwrap();
    let [watches, waits, reads, short] = [0; 4].map(|_| from(one).unwrap());
    let requests = [&watches, &waits, &reads, &short].map(|admitted| begin(&admitted.0));
    watches.0.lasts();
    tokio::time::advance(UNREAD_FOR).await;
    waits.0.lasts();
    // It is not the newest because it was behind.
    requests[0].respond();
    watches.0.blocked();
    watches.0.flushed();
    requests[2].respond();
    reads.0.blocked();
    assert!(from(one).is_none());
    let first = from(other).unwrap();
    assert!(is_closed(&idle.0).await && !is_closed(&reads.0).await);
    drop(idle);
    let _first = begin(&first.0);
    let second = from("10.0.0.4:1").unwrap();
    assert!(is_closed(&reads.0).await && !is_closed(&waits.0).await);
    drop(reads);
    let _second = begin(&second.0);
    let third = from("10.0.0.5:1").unwrap();
    assert!(is_closed(&waits.0).await && !is_closed(&watches.0).await, "the older one goes on");
    drop(waits);
    let _third = begin(&third.0);
    assert!(from("10.0.0.6:1").is_some() && is_closed(&watches.0).await);
    assert!(!is_closed(&short.0).await);
    drop(requests);

    let few = Connections::new(4);
    let from = |host: u8| few.admit(format!("10.0.0.{host}:1").parse().unwrap()).now_or_never().unwrap();
    let all = [1, 2, 3, 4].map(|host| from(host).unwrap());
    all.iter().for_each(|admitted| admitted.0.lasts());
    assert!(from(5).is_none(), "no host has more than its share");
}

#[tokio::test(start_paused = true)]
async fn a_host_with_many_connections_loses_its_own_first_and_evicts_no_others() {
    let connections = Connections::new(8);
    let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
    let quiet = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|address| from(address).unwrap());
    // The same host, whatever the lower half of its address is.
    let crowd = [1, 2, 3, 4, 5].map(|low| from(&format!("[2001:db8::{low}]:1")).unwrap());
    let more = from("[2001:db8::6]:1").unwrap();
    assert!(is_closed(&crowd[0].0).await);
    let other = from("10.0.0.4:1").unwrap();
    assert!(is_closed(&crowd[1].0).await, "the crowd makes room for others, too");
    for quiet in &quiet {
        assert!(!is_closed(&quiet.0).await);
    }
    let requests = crowd[2..].iter().chain([&more]).map(|admitted| begin(&admitted.0)).collect::<Vec<_>>();
    assert!(from("[2001:db8::7]:1").is_none(), "all of its own have a request");
    tokio::time::advance(UNUSED_FOR).await;
    let another = from("[2001:db8::7]:1").unwrap();
    assert!(is_closed(&quiet[0].0).await);
    let _request = begin(&another.0);
    let _last = from("10.0.0.5:1").unwrap();
    assert!(is_closed(&quiet[1].0).await, "nobody else has one to spare");
    drop((requests, quiet, crowd, other));
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_waits_while_many_evicted_ones_are_open() {
    let connections = Connections::new(1);
    let mut all: VecDeque<Admitted> = (0..=MAX_EVICTING).map(|_| admit(&connections).unwrap()).collect();
    let mut next = Box::pin(connections.admit(FROM));
    assert!(timeout_at(Instant::now(), &mut next).await.is_err());
    all.pop_front();
    assert!(next.await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_begin_before_the_last_response_is_sent() {
    let connections = Connections::new(1);
    let admitted = admit(&connections).unwrap();
    let request = begin(&admitted.0);
    request.respond();
    drop(request);
    admitted.0.blocked();
    let mut next = Box::pin(admitted.0.begin());
    assert!(timeout_at(Instant::now(), &mut next).await.is_err());
    tokio::time::advance(UNREAD_FOR).await;
    assert!(admit(&connections).is_some(), "it is evictable while it waits");
    admitted.0.flushed();
    drop(next.await);
}
