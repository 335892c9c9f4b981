//! Answers of nodes to clients. The service answers, without HTTP or RESP.

mod transactions;

use std::sync::Arc;

use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_service::{
    Acquired, Caller, Consistency, Failure, LeaseState, Proof, Service, Transacted, Unsent,
};
use ringfence_wire::Check;
use tokio::time::Instant;

use crate::clients::{Load, ttl};

/// The answer of a node to a client of this `load`, and the grants that the client does not know yet.
pub(crate) async fn serve(
    service: &Arc<Service>,
    invocation: Invocation,
    load: Load,
) -> (Conclusion, Option<Unsent>) {
    let failed = |it: Failure| Conclusion::failed(it.kind(), it.end_reason());
    let caller = match service.caller(Proof::default()) {
        Ok(caller) => caller,
        Err(failure) => return (failed(failure), None),
    };
    if invocation.is_resp() {
        let answered = transactions::answer(service, &caller, &invocation).await;
        return match answered.and_then(Transacted::in_time) {
            Ok(answered) => answered,
            Err(failure) => (failed(failure), None),
        };
    }
    (answer(service, &caller, invocation, load).await.unwrap_or_else(failed), None)
}

async fn answer(
    service: &Arc<Service>,
    caller: &Caller,
    invocation: Invocation,
    load: Load,
) -> Result<Conclusion, Failure> {
    let read = |local| if local { Consistency::Local } else { Consistency::Linearizable };
    Ok(match invocation {
        Invocation::Acquire { lease, keys, ttl_ms, wait_ms, keep_place } => {
            let request = load.acquire(keys, ttl_ms, wait_ms, keep_place);
            match service.acquire(caller, lease, request, Instant::now(), || ()).await.answered().0? {
                Acquired::Granted { grant, standing, .. } => Conclusion::granted(*grant, standing),
                Acquired::Waiting(place) => place.into(),
            }
        }
        Invocation::Lease { lease, local } => match service.lease(caller, lease, read(local)).await? {
            LeaseState::Granted(grant) => grant.into(),
            LeaseState::Waiting(place) => place.into(),
        },
        Invocation::Renew { lease, ttl_ms } => (*service.renew(caller, lease, ttl_ms.map(ttl)).await?).into(),
        Invocation::Release { lease } => service.release(caller, lease).await.map(|()| Conclusion::Done)?,
        Invocation::Revoke { key, token } => {
            service.revoke(caller, key, token).await.map(|()| Conclusion::Done)?
        }
        Invocation::Key { key, local } => {
            service.key(caller, caller.allow_key(&key)?, read(local)).await?.into()
        }
        Invocation::Validate { key, token, local } => {
            service.validate(caller, &[Check { key, token }], read(local)).await?[0].into()
        }
        _ => Conclusion::NotDone { why: "no client asks a node for this".to_owned() },
    })
}
