use axum::http::StatusCode;
use ringfence_access::KeyRight;
use ringfence_lease::LeaseTable;
use ringfence_wire::{Check, ValidateRequest, Verdict, VerdictName, VerdictsAnswer};

use crate::door::access::Caller;
use crate::door::{Answer, Door, Request};
use crate::request::body;
use crate::request::query::{Consistency, Query};
use crate::response::json;

/// `POST /v1/validate`
pub(crate) async fn post(door: &Door, caller: &Caller, request: Request) -> Answer {
    let consistency = Query::consistency_only(request.uri())?;
    let request: ValidateRequest = body::read(door, caller, request, |_| Ok(())).await?;
    let (checks, single) = request.checks()?;
    let allowed = caller.allow(KeyRight::Validate, checks.iter().map(|check| &check.key))?;
    door.now_ms(consistency).await?;
    let results: Vec<Verdict> =
        door.view(&allowed, |table| checks.iter().map(|check| verdict(table, check, consistency)).collect());
    Ok(match results.as_slice() {
        [verdict] if single => json(StatusCode::OK, verdict),
        _ => json(StatusCode::OK, &VerdictsAnswer { results }),
    })
}

fn verdict(table: &LeaseTable, check: &Check, consistency: Consistency) -> Verdict {
    let fence = table.fence(&check.key);
    let is_live = table.is_live(&check.key, check.token);
    let verdict = match consistency {
        Consistency::Linearizable if is_live => VerdictName::Live,
        // The table has every grant up to its revision. A token up to there that is not live has ended, or will never be granted;
        // this covers every token below the fence. One beyond may be granted next.
        _ if !is_live && check.token.0 <= table.revision().0 => VerdictName::Stale,
        _ => VerdictName::Unknown,
    };
    Verdict { verdict, fence }
}
