//! How a node answers a client, without HTTP: as the service says.

use ringfence_laws::history::{Asked, Came};
use ringfence_service::{Acquired, Consistency, Failure, LeaseState, Proof, Service};
use ringfence_wire::Check;
use tokio::time::Instant;

use crate::clients::{Load, ttl};

/// What a node answers to a client of this `load`.
pub(crate) async fn serve(service: &Service, asked: Asked, load: Load) -> Came {
    answer(service, asked, load).await.unwrap_or_else(|it| Came::failed(it.kind(), it.end_reason()))
}

async fn answer(service: &Service, asked: Asked, load: Load) -> Result<Came, Failure> {
    let caller = &service.caller(Proof::default())?;
    let read = |local| if local { Consistency::Local } else { Consistency::Linearizable };
    Ok(match asked {
        Asked::Acquire { lease, keys, ttl_ms, wait_ms, keep_place } => {
            let request = load.acquire(keys, ttl_ms, wait_ms, keep_place);
            match service.acquire(caller, lease, request, Instant::now(), || ()).await.answered().0? {
                Acquired::Granted { grant, standing, .. } => Came::granted(*grant, standing),
                Acquired::Waiting(place) => place.into(),
            }
        }
        Asked::Lease { lease, local } => match service.lease(caller, lease, read(local)).await? {
            LeaseState::Granted(grant) => grant.into(),
            LeaseState::Waiting(place) => place.into(),
        },
        Asked::Renew { lease, ttl_ms } => (*service.renew(caller, lease, ttl_ms.map(ttl)).await?).into(),
        Asked::Release { lease } => service.release(caller, lease).await.map(|()| Came::Done)?,
        Asked::Revoke { key, token } => service.revoke(caller, key, token).await.map(|()| Came::Done)?,
        Asked::Key { key, local } => service.key(caller, caller.allow_key(&key)?, read(local)).await?.into(),
        Asked::Validate { key, token, local } => {
            service.validate(caller, &[Check { key, token }], read(local)).await?[0].into()
        }
        _ => Came::NotDone { why: "no client asks a node for this".to_owned() },
    })
}
