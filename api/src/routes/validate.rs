use std::sync::Arc;

use axum::http::StatusCode;
use ringfence_lease::LeaseTable;
use ringfence_wire::{Check, ValidateRequest, Verdict, VerdictName, VerdictsAnswer};

use crate::door::{Answer, Door, Request, json};
use crate::request::body;
use crate::request::query::{Consistency, Query};

/// `POST /v1/validate`
pub(crate) async fn post(door: Arc<Door>, request: Request) -> Answer {
    let consistency = Query::consistency_only(request.uri())?;
    let wish: ValidateRequest = body::read(request, |_| Ok(())).await?;
    let (checks, single) = wish.checks()?;
    door.now_ms(consistency).await?;
    let results: Vec<Verdict> =
        door.handle.view(|table| checks.iter().map(|check| verdict(table, check, consistency)).collect());
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
        Consistency::Linearizable => VerdictName::Stale,
        // The table knows every grant up to its revision: a token from there that is not live has ended, or never was.
        // Every token below the fence is such a one.
        Consistency::Local if !is_live && check.token.0 <= table.revision().0 => VerdictName::Stale,
        Consistency::Local => VerdictName::Unknown,
    };
    Verdict { verdict, fence }
}
