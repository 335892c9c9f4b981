use ringfence_wire::{ProblemKind, Token};

use crate::service::{MOST_BYTES, Service, exclusive};

#[tokio::test]
async fn a_late_write_is_412_with_the_fence_and_changes_nothing() {
    let service = Service::start(Ok(1)).await;
    assert_eq!(service.put("5", "new").await.status, 200);
    let problem = service.put("2", "late").await.problem(ProblemKind::StaleToken);
    assert_eq!(problem.fence, Some(Token(5)));
    assert_eq!(service.put("5", "newer").await.status, 200, "a holder writes as often as it likes");
    assert_eq!(service.done(), ["wrote new", "wrote newer"]);
}

#[tokio::test]
async fn a_read_with_a_token_shuts_out_earlier_holders() {
    let service = Service::start(Ok(1)).await;
    assert_eq!(service.put("2", "old").await.status, 200);
    let read = service.send("GET", "/things/a", &exclusive("5"), "").await;
    assert_eq!((read.status, &read.body[..]), (200, &b"old"[..]));
    service.put("2", "late").await.problem(ProblemKind::StaleToken);
    service.send("GET", "/things/a", &exclusive("2"), "").await.problem(ProblemKind::StaleToken);
    assert_eq!(service.done(), ["wrote old", "read old"]);
}

#[tokio::test]
async fn shared_holders_are_shut_out_below_their_fence_only() {
    let service = Service::start(Ok(1)).await;
    let shared = |token, fence| [exclusive(token).to_vec(), vec![("Ringfence-Fence", fence)]].concat();
    for (token, fence, status) in [("9", "5", 200), ("7", "5", 200), ("4", "3", 412), ("6", "2", 200)] {
        let answer = service.send("PUT", "/things/a", &shared(token, fence), "x").await;
        assert_eq!(answer.status, status, "{token} {fence}");
    }
}

#[tokio::test]
async fn a_write_without_a_token_is_428_and_a_read_passes() {
    let service = Service::start(Ok(1)).await;
    let [key, token] = exclusive("2");
    for headers in [&[][..], &[key], &[token], &[("Ringfence-Fence", "2")]] {
        service.send("PUT", "/things/a", headers, "x").await.problem(ProblemKind::TokenRequired);
    }
    service.send("GET", "/things/a", &[key], "").await.problem(ProblemKind::TokenRequired);
    assert_eq!(service.done(), Vec::<String>::new());
    assert_eq!(service.send("GET", "/things/a", &[], "").await.status, 200);
}

/// Once a target without a key passed unguarded.
#[tokio::test]
async fn a_target_whose_name_is_no_key_is_400_and_reaches_no_handler() {
    let service = Service::start(Ok(1)).await;
    let (none, holder): (&[_], _) = (&[], exclusive("5"));
    for name in [&*"x".repeat(512), "a%00b", "a%0Ab", "a%FFb"] {
        let path = format!("/things/{name}");
        for (method, headers) in [("PUT", none), ("PUT", &holder[..]), ("GET", none), ("POST", none)] {
            let answer = service.send(method, &path, headers, "x").await;
            let problem = answer.problem(ProblemKind::InvalidRequest);
            assert_eq!(problem.field.as_deref(), Some("path"), "{method} {path}");
        }
    }
    assert_eq!(service.done(), Vec::<String>::new());
}

#[tokio::test]
async fn an_ambiguous_header_is_400_and_named() {
    let service = Service::start(Ok(1)).await;
    let [key, token] = exclusive("5");
    for (field, headers) in [
        ("Ringfence-Key", vec![("Ringfence-Key", "things/b"), token]),
        ("Ringfence-Key", vec![("Ringfence-Key", "things/%FF"), token]),
        ("Ringfence-Key", vec![("Ringfence-Key", "things/ä"), token]),
        ("Ringfence-Key", vec![key, key, token]),
        ("Ringfence-Token", vec![key, token, token]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "")]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "+5")]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "5, 5")]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "0")]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "9007199254740992")]),
        ("Ringfence-Token", vec![key, ("Ringfence-Token", "99999999999999999999999")]),
        ("Ringfence-Fence", vec![key, token, ("Ringfence-Fence", "6")]),
        ("Ringfence-Fence", vec![key, token, ("Ringfence-Fence", "0")]),
        ("Ringfence-Fence", vec![key, token, ("Ringfence-Fence", "x")]),
    ] {
        let answer = service.send("PUT", "/things/a", &headers, "x").await;
        assert_eq!(answer.problem(ProblemKind::InvalidRequest).field.as_deref(), Some(field), "{headers:?}");
    }
    assert_eq!(service.done(), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_is_percent_decoded_once() {
    let service = Service::start(Ok(1)).await;
    let key = [("Ringfence-Key", "things/%C3%A4%2fb%20%2541"), ("Ringfence-Token", "5")];
    assert_eq!(service.send("PUT", "/things/%C3%A4/b%20%2541", &key, "x").await.status, 200);
    let key = "things/ä/b %41".parse().unwrap();
    assert_eq!(service.guard.key(&key).await.unwrap().high().await, Token(5));
}

#[tokio::test]
async fn after_a_restart_the_cluster_is_asked_before_anything_is_accepted() {
    let service = Service::start(Ok(5)).await;
    let problem = service.put("4", "late").await.problem(ProblemKind::StaleToken);
    assert_eq!(problem.fence, Some(Token(5)));
    assert_eq!(service.put("5", "new").await.status, 200);

    let service = Service::start(Err("no leader")).await;
    let answer = service.put("5", "new").await;
    assert!(answer.problem(ProblemKind::Unavailable).detail.contains("no leader"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(service.done(), Vec::<String>::new());
}

/// Once a number from a broken `ask` was accepted: 0 admitted stale tokens, and a very large one rejected everybody.
#[tokio::test]
async fn an_answer_that_is_no_fence_is_503_and_makes_no_key_known() {
    for no_fence in [0, 1 << 53, u64::MAX] {
        let service = Service::start(Ok(no_fence)).await;
        let answer = service.put("5", "x").await;
        assert!(answer.problem(ProblemKind::Unavailable).detail.contains(&no_fence.to_string()));
        assert!(service.guard.key(&"things/a".parse().unwrap()).await.is_err());
        assert_eq!(service.done(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_operator_frees_a_key_that_was_shown_a_timestamp() {
    let service = Service::start(Ok(1)).await;
    let key = "things/a".parse().unwrap();
    assert_eq!(service.put("1790000000000", "x").await.status, 200);
    service.put("6", "x").await.problem(ProblemKind::StaleToken);
    let guarded = service.guard.key(&key).await.unwrap();
    assert!(guarded.reset(Token(u64::MAX)).await.is_err());
    guarded.reset(Token(6)).await.unwrap();
    service.put("5", "x").await.problem(ProblemKind::StaleToken);
    assert_eq!(service.put("6", "x").await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413() {
    let service = Service::start(Ok(1)).await;
    assert_eq!(service.put("5", &"x".repeat(MOST_BYTES)).await.status, 200);
    service.put("6", &"x".repeat(MOST_BYTES + 1)).await.problem(ProblemKind::TooLarge);
    assert_eq!(service.put("5", "x").await.status, 200, "what was refused raised nothing");
}
