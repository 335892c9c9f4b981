use std::collections::VecDeque;

use futures_util::FutureExt;

use super::*;

/// Admits a connection from this host, which must not wait.
fn admit(connections: &Arc<Connections>, host: u8) -> Admitted {
    let from = SocketAddr::from(([10, 0, 0, host], 1));
    connections.admit(from).now_or_never().expect("few evicted connections are open")
}

/// The same, for a principal.
fn admit_known(connections: &Arc<Connections>, host: u8, principal: &str) -> Admitted {
    let admitted = admit(connections, host);
    answer(&admitted, |connection| connection.belongs_to(Some(principal)));
    admitted
}

/// Begins a request, which must not wait.
fn begin(admitted: &Admitted) -> InFlight {
    admitted.0.begin().now_or_never().expect("all earlier responses are sent")
}

/// A request is answered, and the response is sent.
fn answer(admitted: &Admitted, handle: impl FnOnce(&Connection)) {
    let request = begin(admitted);
    handle(&admitted.0);
    request.respond();
    drop(request);
    admitted.0.flushed();
}

/// Whether it must be closed now.
fn is_closed(admitted: &Admitted) -> bool {
    admitted.0.until_closed().now_or_never().is_some()
}

/// Which ones must be closed now.
fn closed<const N: usize>(all: [&Admitted; N]) -> [bool; N] {
    all.map(is_closed)
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_is_doing_decides_which_of_a_tenant_is_closed() {
    let connections = Connections::new(7);
    let [new, body, old_wait, new_wait, idle, blocked, busy] = [1; 7].map(|host| admit(&connections, host));
    answer(&idle, |_| ());
    let (_body, _old, _new) = (begin(&body), begin(&old_wait), begin(&new_wait));
    let (reads, _busy) = (begin(&blocked), begin(&busy));
    tokio::time::advance(Duration::from_millis(1)).await;
    body.0.waits_for_body();
    old_wait.0.lasts();
    tokio::time::advance(Duration::from_millis(1)).await;
    new_wait.0.lasts();
    reads.respond();
    drop(reads);
    blocked.0.blocked();
    // Another tenant has fewer, so that this one has to give up one each time.
    let order = [&new_wait, &old_wait, &new, &idle, &body, &blocked];
    let mut others = Vec::new();
    for (number, next) in order.iter().enumerate() {
        assert_eq!(order.map(is_closed).iter().filter(|closed| **closed).count(), number);
        others.push(admit_known(&connections, 2, "other"));
        assert!(is_closed(next), "{number}");
    }
    assert!(!is_closed(&busy));
}

/// It was closed as late after 10 s, however early the client was.
#[tokio::test(start_paused = true)]
async fn a_whole_head_waits_for_its_turn_as_long_as_that_takes() {
    let connections = Connections::new(2);
    let [late, waits] = [1; 2].map(|host| admit(&connections, host));
    late.0.received();
    waits.0.received();
    waits.0.waits_for_turn();
    tokio::time::advance(HEAD_TIMEOUT).await;
    assert_eq!(closed([&late, &waits]), [true, false]);
    tokio::time::advance(IDLE_TIMEOUT).await;
    assert_eq!(closed([&late, &waits]), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_turn_misses_nothing() {
    let connections = Connections::new(2);
    let waits = admit(&connections, 1);
    tokio::time::advance(Duration::from_millis(2)).await;
    let idle = admit(&connections, 1);
    tokio::time::advance(Duration::from_millis(2)).await;
    waits.0.received();
    waits.0.waits_for_turn();
    let _other = admit(&connections, 2);
    assert_eq!(closed([&waits, &idle]), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_being_answered_is_answered_before_its_connection_is_closed() {
    let connections = Connections::new(1);
    let first = admit(&connections, 1);
    let request = begin(&first);
    let second = admit(&connections, 1);
    assert!(!is_closed(&first));
    request.respond();
    drop(request);
    assert!(!is_closed(&first));
    first.0.flushed();
    assert!(is_closed(&first) && first.0.begin().now_or_never().is_none(), "nothing more begins");
    // Nor on one that was idle.
    answer(&second, |_| ());
    let _third = admit(&connections, 1);
    assert!(is_closed(&second) && second.0.begin().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn strangers_take_no_connection_from_principals_within_their_share() {
    let connections = Connections::new(16);
    let known: Vec<_> = (0..12).map(|number| admit_known(&connections, number, "holder")).collect();
    let mut strangers: VecDeque<_> = (100..104).map(|host| admit(&connections, host)).collect();
    for _ in 0..4 {
        for host in 200..232 {
            strangers.push_back(admit(&connections, host));
            assert!(!known.iter().any(is_closed));
            strangers.retain(|stranger| !is_closed(stranger));
        }
    }
    assert_eq!(connections.count(), (16, 16));
    // What principals have beyond it is lent.
    let more = admit_known(&connections, 7, "holder");
    let _stranger = admit(&connections, 99);
    assert_eq!(known.iter().chain([&more]).filter(|known| is_closed(known)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_tenant_with_most_connections_gives_one_up() {
    let connections = Connections::new(8);
    let quiet = [1, 2, 3].map(|host| admit(&connections, host));
    let crowd = [4; 5].map(|host| admit(&connections, host));
    let _own = admit(&connections, 4);
    assert_eq!(closed([&crowd[0], &crowd[1]]), [true, false]);
    let _other = admit(&connections, 5);
    assert_eq!(closed([&crowd[1], &crowd[2]]), [true, false]);
    let _second_of_quiet = admit(&connections, 1);
    assert!(is_closed(&crowd[2]) && !quiet.iter().any(is_closed));

    // The same for principals, wherever they come from.
    let connections = Connections::new(8);
    let few = admit_known(&connections, 1, "few");
    let many = [1, 2, 3, 4, 5, 6, 7].map(|host| admit_known(&connections, host, "many"));
    let _new = admit(&connections, 1);
    assert!(is_closed(&many[0]) && !is_closed(&few));
}

#[tokio::test(start_paused = true)]
async fn a_host_with_ipv6_is_one_whatever_the_lower_half_of_its_address() {
    let connections = Connections::new(4);
    let from = |address: &str| connections.admit(address.parse().unwrap()).now_or_never().unwrap();
    let quiet = from("[2001:db8:0:1::1]:1");
    let crowd = [1, 2, 3].map(|low| from(&format!("[2001:db8::{low}]:1")));
    let _new = from("[2001:db8::4]:1");
    assert!(is_closed(&crowd[0]) && !is_closed(&quiet));
}

/// Own waits once cost a holder the connection on which it renewed, and there was no room for another.
#[tokio::test(start_paused = true)]
async fn a_connection_with_several_requests_does_not_go_first_because_one_lasts() {
    let connections = Connections::new(2);
    let [several, idle] = [1; 2].map(|host| admit(&connections, host));
    let (first, _second) = (begin(&several), begin(&several));
    several.0.lasts();
    let _other = admit(&connections, 2);
    assert_eq!(closed([&several, &idle]), [false, true]);
    drop(first);
    several.0.lasts();
    let _another = admit(&connections, 3);
    assert!(is_closed(&several));
}

#[tokio::test(start_paused = true)]
async fn own_waits_go_before_the_connection_of_a_holder_between_two_renewals() {
    let connections = Connections::new(60);
    let holder = admit_known(&connections, 1, "app");
    let mut waits = Vec::new();
    for _ in 0..100 {
        tokio::time::advance(Duration::from_millis(10)).await;
        let waiter = admit(&connections, 1);
        let request = begin(&waiter);
        waiter.0.belongs_to(Some("app"));
        waiter.0.lasts();
        waits.push((waiter, request));
        waits.retain(|(waiter, _)| !is_closed(waiter));
        assert!(!is_closed(&holder));
    }
    answer(&holder, |_| ());
    assert_eq!((connections.count(), waits.len()), ((60, 60), 59));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_arrives_piece_by_piece_gets_a_new_place_with_each() {
    let connections = Connections::new(2);
    let (first, second) = (admit(&connections, 1), admit(&connections, 1));
    let (_first, _second) = (begin(&first), begin(&second));
    first.0.waits_for_body();
    second.0.waits_for_body();
    first.0.waits_for_body();
    let _third = admit(&connections, 1);
    assert!(!is_closed(&first) && is_closed(&second));
}

/// The first eviction once gave all of them their order at once, while all other threads waited for the table.
#[tokio::test]
async fn many_connections_that_were_used_are_put_in_order_in_short_steps() {
    let connections = Connections::new(300);
    let many: Vec<_> = (0..300).map(|_| admit(&connections, 1)).collect();
    many.iter().for_each(|one| answer(one, |_| ()));
    let newcomer = Tenant::host(many[0].0.from);
    assert!(!connections.table().settle_for(&newcomer));
    let _new = connections.admit(many[0].0.from).await;
    assert!(is_closed(&many[0]) && !many[1..].iter().any(is_closed));
}

/// Once the table lost count of evicted connections, until the server accepted nothing.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_connections_whatever_they_did() {
    let connections = Connections::new(5);
    let mut draws = fastrand::Rng::with_seed(7);
    let mut open: Vec<(Admitted, Option<InFlight>)> = Vec::new();
    for _ in 0..20_000 {
        tokio::time::advance(Duration::from_millis(draws.u64(0..300))).await;
        if draws.u8(0..4) == 0 {
            if let Some(admitted) =
                connections.admit(SocketAddr::from(([10, 0, 0, draws.u8(0..3)], 1))).now_or_never()
            {
                open.push((admitted, None));
            }
        } else if let Some((admitted, request)) = draws.choice(&mut open) {
            match draws.u8(0..9) {
                0 => admitted.0.received(),
                1 if request.is_none() => *request = admitted.0.begin().now_or_never(),
                2 => admitted.0.belongs_to(draws.choice([None, Some("a"), Some("b")]).unwrap()),
                3 => admitted.0.waits_for_body(),
                4 if request.is_some() => admitted.0.lasts(),
                5 => request.iter().for_each(InFlight::respond),
                6 => *request = None,
                7 => admitted.0.blocked(),
                _ => admitted.0.flushed(),
            }
        }
        open.retain(|(admitted, _)| !is_closed(admitted) && draws.u8(0..100) > 0);
        let table = connections.table();
        table.assert_is_sound();
        assert!(table.count() <= 5 && table.open == open.len() && table.open <= 5 + MAX_EVICTING);
    }
    drop(open);
    assert!(connections.table().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_waits_while_many_evicted_ones_are_open() {
    let connections = Connections::new(1);
    let mut all: VecDeque<Admitted> = (0..=MAX_EVICTING).map(|_| admit(&connections, 1)).collect();
    let mut next = Box::pin(connections.admit(SocketAddr::from(([10, 0, 0, 1], 1))));
    assert!((&mut next).now_or_never().is_none());
    all.pop_front();
    next.await;
}

/// Requests can take seconds while there is no leader.
#[tokio::test(start_paused = true)]
async fn a_new_connection_does_not_wait_for_the_answers_of_evicted_ones() {
    let connections = Connections::new(1);
    let mut busy: Vec<_> =
        (0..=MAX_EVICTING).map(|_| admit(&connections, 1)).map(|it| (begin(&it), it)).collect();
    assert!(!busy.iter().any(|(_, admitted)| is_closed(admitted)));
    let mut next = Box::pin(connections.admit(SocketAddr::from(([10, 0, 0, 1], 1))));
    assert!((&mut next).now_or_never().is_none());
    assert!(!busy.iter().any(|(_, admitted)| is_closed(admitted)), "most are answered soon");
    tokio::time::advance(PATIENCE).await;
    assert!((&mut next).now_or_never().is_none());
    let overdue = busy.iter().filter(|(_, admitted)| is_closed(admitted));
    assert_eq!(overdue.count(), 1);
    assert!(is_closed(&busy[0].1), "the longest evicted");
    // Its thread hangs.
    tokio::time::advance(PATIENCE).await;
    assert!((&mut next).now_or_never().is_none());
    assert!(is_closed(&busy[1].1) && !is_closed(&busy[2].1));
    drop(busy.remove(0));
    next.await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_proxy_counts_for_its_last_user() {
    let connections = Connections::new(4);
    let pooled = admit_known(&connections, 1, "first");
    let other = admit_known(&connections, 1, "first");
    answer(&pooled, |connection| connection.belongs_to(Some("second")));
    let crowd = admit_known(&connections, 2, "second");
    let _third = admit_known(&connections, 3, "third");
    let _new = admit(&connections, 4);
    assert_eq!(closed([&pooled, &other, &crowd]), [true, false, false]);
    answer(&crowd, |connection| connection.belongs_to(None));
    assert_eq!(crowd.0.tenant(), Tenant::host(crowd.0.from));
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_begin_before_the_last_response_is_sent() {
    let connections = Connections::new(1);
    let admitted = admit(&connections, 1);
    let request = begin(&admitted);
    request.respond();
    drop(request);
    admitted.0.blocked();
    let mut next = Box::pin(admitted.0.begin());
    assert!((&mut next).now_or_never().is_none());
    admitted.0.flushed();
    drop(next.await);
}

/// Some waits for a lease, or some responses that nobody read, once kept all others from beginning.
#[tokio::test]
async fn a_large_request_takes_its_memory_only_while_it_is_being_handled() {
    const MAX: usize = 64 << 20;
    let connections = Connections::new(2);
    let (waits, answered) = (admit(&connections, 1), admit(&connections, 1));
    let (_waiting, responding) = (begin(&waits), begin(&answered));
    let take = || connections.memory.handled.wait(Tenant::host(waits.0.from), MAX);
    waits.0.state().memory = Some(take().await);
    assert!(take().now_or_never().is_none());
    waits.0.takes_little();
    answered.0.state().memory = Some(take().now_or_never().expect("a request that waits takes little"));
    responding.respond();
    let memory = take().now_or_never().expect("a response has a portion of its own");
    assert!(!waits.0.takes_more(1) && waits.0.takes_more(MAX), "whatever the size of its body");
    drop(memory);
}
