//! Clients that ask for much.

use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn tenants_take_turns_however_much_each_has_sent() {
    const CROWD: usize = 100;
    const EACH: usize = 50;
    let server = Server::here(2 * CROWD).await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut client = server.sent("as many\n").await;
        reads(&mut client, "many\n").await;
        crowd.push(client);
    }
    let mut few = server.sent("as few\n").await;
    reads(&mut few, "few\n").await;
    for client in &mut crowd {
        client.write_all("busy\n".repeat(EACH).as_bytes()).await.unwrap();
    }
    let done = || server.seen.ended.load(Relaxed);
    let before = done();
    for _ in 0..10 {
        few.write_all(b"echo a\n").await.unwrap();
        reads(&mut few, "a\n").await;
    }
    assert!(done() - before < CROWD * EACH / 5, "{} of the others", done() - before);
}

#[tokio::test]
async fn the_turn_of_a_tenant_comes_however_long_those_of_others_take() {
    let server = Server::here(10).await;
    let mut clients = Vec::new();
    for tenant in ["a", "b", "c", "few"] {
        let mut client = server.sent(format!("as {tenant}\n")).await;
        reads(&mut client, &format!("{tenant}\n")).await;
        clients.push(client);
    }
    let mut few = clients.pop().unwrap();
    for client in &mut clients {
        client.write_all("toil\n".repeat(1_000).as_bytes()).await.unwrap();
    }
    until("they toil", || server.seen.ended.load(Relaxed) > 10).await;
    let before = server.seen.ended.load(Relaxed);
    for _ in 0..3 {
        few.write_all(b"echo a\n").await.unwrap();
        reads(&mut few, "a\n").await;
    }
    let others = server.seen.ended.load(Relaxed) - before;
    assert!(others < 100, "{others} of the others");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_kept_by_a_last_answer_behind() {
    let server = Server::here(10).await;
    let _client = server.sent("+wait-large 20000000\n+wait-behind-quit a\necho b\n").await;
    until("two begin", || server.seen.begun.load(Relaxed) == 2).await;
    for _ in 0..1_000 {
        yield_now().await;
    }
    let begun = Instant::now();
    server.gate.send_replace(true);
    while server.connections.count().0 > 0 && begun.elapsed() < 3 * IDLE_TIMEOUT {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() < 2 * IDLE_TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_cannot_ask_for_ever_more_responses() {
    const REQUESTS: usize = 2_000;
    let server = Server::here(10).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut client = socket.connect(server.address).await.unwrap();
    client.write_all(b"as app\n").await.unwrap();
    reads(&mut client, "app\n").await;
    client.write_all(&b"large 8192\n".repeat(REQUESTS)).await.unwrap();
    let begun = Instant::now();
    while server.connections.count().0 > 0 {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() >= IDLE_TIMEOUT && begun.elapsed() < 2 * IDLE_TIMEOUT);
    let asked = server.seen.begun.load(Relaxed);
    assert!(asked < REQUESTS / 4, "{asked}");
}

#[tokio::test]
async fn what_follows_a_request_waits_in_the_kernel() {
    let server = Server::here(10).await;
    const BEFORE: usize = 2_000;
    let mut client = server.sent("").await;
    // Some bytes after a waiting request are read, but not without end.
    let text = "echo\n".repeat(BEFORE) + "wait a\n" + &"echo b\n".repeat(5_000_000);
    let (mut reader, writer) = client.split();
    let (mut written, mut stuck) = (0, 0);
    // Writes until the server reads no more.
    while stuck < 1_000 {
        match writer.try_write(&text.as_bytes()[written..]) {
            Ok(bytes) => (written, stuck) = (written + bytes, 0),
            Err(_) => stuck += 1,
        }
        yield_now().await;
    }
    assert!(written < text.len() / 2, "{written}");
    server.gate.send_replace(true);
    let mut first = [0; BEFORE + 4];
    reader.read_exact(&mut first).await.unwrap();
    assert!(first.ends_with(b"\na\nb\n"));
    assert!(server.seen.received.load(Relaxed) <= 2 * PER_TURN);
}
