use super::*;

fn proposal(queued: &Arc<Queued>, reply: Reply<Proposed>) -> Proposal {
    Proposal { request: Request::default(), reply, share: QueueShare::take(queued, 7).unwrap(), raise: None }
}

/// After a stall, abandoned requests were once committed before all others.
#[tokio::test]
async fn abandoned_requests_are_skipped_and_leave_the_queue() {
    let queued = Arc::new(Queued::default());
    let (queue, messages) = mpsc::unbounded_channel();
    let mut requests = Requests { messages, received: VecDeque::new() };
    let (first, waits) = Reply::new(None);
    let (gone, _) = Reply::new(None);
    let (last, waits_too) = Reply::new(None);
    assert!(queue.send(vec![proposal(&queued, first), proposal(&queued, gone)]).is_ok());
    assert!(queue.send(vec![proposal(&queued, last)]).is_ok());
    drop(waits);
    assert!(requests.wait().await);
    let taken = requests.next_if(|_| true).unwrap();
    assert!(!taken.reply.is_closed());
    assert_eq!(queued.bytes.load(Ordering::Relaxed), 7);
    drop((taken, waits_too));
    assert_eq!((queued.requests.load(Ordering::Relaxed), queued.bytes.load(Ordering::Relaxed)), (0, 0));
    assert!(requests.next_if(|_| true).is_none());
}

#[test]
fn the_queue_is_bounded_by_requests_and_by_bytes() {
    let queued = Arc::new(Queued::default());
    let large: Vec<_> = (0..4).map(|_| QueueShare::take(&queued, MAX_QUEUED_BYTES / 4).unwrap()).collect();
    assert!(QueueShare::take(&queued, 1).is_none());
    drop(large);
    let many: Vec<_> = (0..MAX_QUEUED).map(|_| QueueShare::take(&queued, 1).unwrap()).collect();
    assert!(QueueShare::take(&queued, 1).is_none());
    drop(many);
    assert!(QueueShare::take(&queued, 1).is_some());
}
