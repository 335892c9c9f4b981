use axum::http::StatusCode;
use ringfence_metric::Gauge;
use ringfence_wire::{ClusterStatus, Role};

use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::request::query::Query;
use crate::response::with_type;

/// `GET /metrics`
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    set_gauges(&door.cluster().try_status()?);
    let (bytes, max_bytes) = door.cluster().try_view(|table| (table.bytes(), table.max_bytes()))?;
    measure::LEASE_BYTES.get().set(bytes as f64);
    measure::LEASE_BYTES_MOST.get().set(max_bytes.map_or(f64::NAN, |max| max as f64));
    measure::WATCHERS.get().set(door.watchers.count().map_or(f64::NAN, |count| count as f64));
    let (connections, max) = door.options.connections.count();
    measure::CONNECTIONS.get().set(connections as f64);
    measure::CONNECTIONS_MOST.get().set(max as f64);
    let unfinished = door.cluster().unfinished();
    measure::PROPOSAL_PENDING_SECONDS.get().set(unfinished.proposal);
    measure::LOG_FLUSH_PENDING_SECONDS.get().set(unfinished.flush);
    let text = door.options.metrics.render();
    Ok(with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Gauges are set for each scrape, not kept up to date.
fn set_gauges(status: &ClusterStatus) {
    let set = |gauge: &Gauge, value: u64| gauge.get().set(value as f64);
    set(&measure::HAS_LEADER, status.leader.is_some().into());
    set(&measure::IS_LEADER, (status.role == Role::Leader).into());
    set(&measure::TERM, status.term);
    set(&measure::LAST_LOG_INDEX, status.last_log_index.unwrap_or(0));
    set(&measure::COMMITTED_INDEX, status.committed_index.unwrap_or(0));
    set(&measure::APPLIED_INDEX, status.applied_index.unwrap_or(0));
    let lag = status.committed_index.unwrap_or(0).saturating_sub(status.applied_index.unwrap_or(0));
    set(&measure::APPLY_LAG_ENTRIES, lag);
    set(&measure::RULES, status.rules.into());
    // If it is not known, it is not a number, which no alert takes for one.
    measure::RULES_SUPPORTED.get().set(status.rules_supported.map_or(f64::NAN, f64::from));
    set(&measure::REVISION, status.revision.0);
    set(&measure::LEASES_LIVE, status.live_leases);
    set(&measure::WAITERS, status.waiters);
}
