//! The course of one dialog.

use std::pin::pin;

use futures_util::FutureExt;

use super::*;
use crate::paced::Paced;
use crate::socket::Stream;

/// A course with turns of its own, and its client.
async fn course() -> (Course<Lines>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, from) = listener.accept().await.unwrap();
    let (turns, admitted) = (Arc::default(), Connections::new(1).admit(from).await);
    let stream = Stream::Plain(Paced::plain(stream, &turns, &admitted.0));
    let socket = Socket::new(stream, Arc::clone(&admitted.0));
    let (never, draining) = watch::channel(false);
    let gate = draining.clone();
    std::mem::forget(never);
    (Course::new(Lines { seen: Arc::default(), gate }, socket, turns, draining), client)
}

impl Course<Lines> {
    async fn next(&mut self) -> Bytes {
        self.incoming.next(&mut self.dialog, &mut self.socket).await.unwrap().unwrap().unwrap()
    }
}

#[tokio::test]
async fn each_further_piece_of_a_response_is_sent_in_a_turn() {
    let (mut course, mut client) = course().await;
    let turns = Arc::clone(&course.turns);
    let tenant = course.reader.connection().tenant();
    let in_flight = course.reader.begin(&turns).await;
    let mut outgoing = Outgoing::default();
    outgoing.add(in_flight, Response { bytes: vec![7; 3 * PER_TURN].into(), ..Response::default() });
    let mut sends = pin!(outgoing.send(&mut course.socket, &turns));
    let mut bytes = vec![0; PER_TURN];
    for _ in 0..2 {
        while turns.ask(tenant.clone()).is_none() {}
        assert!(sends.as_mut().now_or_never().is_none(), "there are no more turns now");
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Its turn comes.
        turns.take(tenant.clone()).await;
    }
    sends.await.unwrap();
    client.read_exact(&mut bytes).await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_a_large_request() {
    let (mut course, mut client) = course().await;
    let large = [vec![b'x'; 5 * PER_TURN], b"\necho a\n".to_vec()].concat();
    client.write_all(&large).await.unwrap();
    let first = course.next().await;
    assert_eq!(first.len(), 5 * PER_TURN + 1);
    assert!(course.incoming.received.capacity() < PER_TURN, "{}", course.incoming.received.capacity());
    assert!(course.incoming.portion.is_some());
    let in_flight = course.reader.connection().begin_now().unwrap();
    course.answer_large(in_flight, first).await;
    assert!(course.incoming.portion.is_none());
    assert_eq!(course.next().await, "echo a\n");
    for text in ["a longer one\n", "short\n"] {
        client.write_all(text.as_bytes()).await.unwrap();
        course.next().await;
    }
    assert!(course.next().now_or_never().is_none());
    assert_eq!((course.incoming.received.capacity(), course.incoming.kept), (0, 0));
}
