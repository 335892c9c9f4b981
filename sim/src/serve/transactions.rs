//! Requests of clients over RESP. Each of them is a request of several steps.

use std::sync::Arc;

use ringfence_laws::history::{Conclusion, Invocation, Seen, ValuedKey};
use ringfence_lease::Value;
use ringfence_service::{
    self as service, Caller, CannotDo, Failure, Keys, Service, Transacted, Transaction, Visit,
};
use ringfence_wire::{LeaseId, ProblemKind};

use crate::clients::ttl;

/// The answer of the service.
pub(super) async fn answer(
    service: &Arc<Service>,
    caller: &Caller,
    invocation: &Invocation,
) -> Result<Transacted<Conclusion>, Failure> {
    let keys = invocation.keys().into_iter().cloned().collect();
    let keys = Keys::new(keys).expect("clients name few keys");
    let mut run = |keys: &mut Transaction| Ok(run(keys, invocation).unwrap_or_else(|refused| refused));
    let mut visit = Visit::of(Arc::clone(service), caller.clone());
    service.transact(&mut visit, &keys, None, &mut run).await
}

/// Does what the scripts of clients do: it reads all keys before it changes any.
fn run(keys: &mut Transaction, invocation: &Invocation) -> Result<Conclusion, Conclusion> {
    match invocation {
        Invocation::Set { keys: wanted, ttl_ms, only_if } => {
            only_if.iter().try_for_each(|at| has(keys, at))?;
            for at in wanted {
                if keys.see(&at.key) != Ok(service::Seen::Free) {
                    return Err(refused(ProblemKind::Held));
                }
            }
            for at in wanted {
                keys.acquire(&at.key, value(at.value), ttl(*ttl_ms)).map_err(cannot)?;
            }
            Ok(Conclusion::Done)
        }
        Invocation::EndIf { at } => {
            has(keys, at)?;
            keys.end(&at.key).map_err(cannot).map(|_| Conclusion::Done)
        }
        Invocation::ExpireIf { at, ttl_ms } => {
            has(keys, at)?;
            keys.expire(&at.key, ttl(*ttl_ms)).map_err(cannot).map(|_| Conclusion::Done)
        }
        Invocation::Token { at } => {
            let token = keys.token(&at.key, &value(at.value)).map_err(cannot)?;
            token.map(|token| Conclusion::Token { token }).ok_or(refused(ProblemKind::LeaseGone))
        }
        Invocation::Get { key } => {
            let seen = match keys.see(key).map_err(cannot)? {
                service::Seen::Free => Seen::Nothing,
                service::Seen::Taken => Seen::Other,
                service::Seen::Own(value) => Seen::Value(id(value)?),
            };
            Ok(Conclusion::Value { seen })
        }
        _ => Err(Conclusion::NotDone { why: "no client asks for this over RESP".to_owned() }),
    }
}

fn has(keys: &mut Transaction, at: &ValuedKey) -> Result<(), Conclusion> {
    let has = keys.see(&at.key) == Ok(service::Seen::Own(&value(at.value)));
    if has { Ok(()) } else { Err(refused(ProblemKind::LeaseGone)) }
}

fn value(id: LeaseId) -> Value {
    Value::new(id.to_string().as_bytes()).expect("an id is short")
}

fn id(value: &Value) -> Result<LeaseId, Conclusion> {
    let text = str::from_utf8(value.as_bytes()).ok();
    let malformed = || Conclusion::Malformed { why: "a value that no client has set".to_owned() };
    text.and_then(|text| text.parse().ok()).ok_or_else(malformed)
}

fn refused(problem: ProblemKind) -> Conclusion {
    Conclusion::Refused { problem, reason: None }
}

fn cannot(cannot: CannotDo) -> Conclusion {
    Conclusion::Malformed { why: format!("{cannot:?}, though it could be done") }
}
