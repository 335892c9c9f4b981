use axum::http::StatusCode;
use metrics::gauge;
use ringfence_wire::{ClusterStatus, Role};

use crate::door::{Answer, Door, Request};
use crate::request::query::Query;
use crate::response::with_type;

/// `GET /metrics`
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    Query::none(request.uri())?;
    set_gauges(&door.cluster().status());
    let (bytes, max_bytes) = door.cluster().view(|table| (table.bytes(), table.max_bytes()));
    gauge!("ringfence_lease_bytes").set(bytes as f64);
    gauge!("ringfence_lease_bytes_most").set(max_bytes.map_or(f64::NAN, |max| max as f64));
    gauge!("ringfence_watchers").set(door.watchers.count() as f64);
    let (connections, max) = door.options.connections.count();
    gauge!("ringfence_http_connections").set(connections as f64);
    gauge!("ringfence_http_connections_most").set(max as f64);
    let unfinished = door.cluster().unfinished();
    gauge!("ringfence_raft_proposal_pending_seconds").set(unfinished.proposal);
    gauge!("ringfence_raft_log_flush_pending_seconds").set(unfinished.flush);
    let text = door.options.metrics.render();
    Ok(with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Gauges are set for each scrape, not kept up to date.
fn set_gauges(status: &ClusterStatus) {
    let set = |name: &'static str, value: u64| gauge!(name).set(value as f64);
    set("ringfence_raft_has_leader", status.leader.is_some().into());
    set("ringfence_raft_is_leader", (status.role == Role::Leader).into());
    set("ringfence_raft_term", status.term);
    set("ringfence_raft_last_log_index", status.last_log_index.unwrap_or(0));
    set("ringfence_raft_committed_index", status.committed_index.unwrap_or(0));
    set("ringfence_raft_applied_index", status.applied_index.unwrap_or(0));
    let lag = status.committed_index.unwrap_or(0).saturating_sub(status.applied_index.unwrap_or(0));
    set("ringfence_raft_apply_lag_entries", lag);
    set("ringfence_raft_rules", status.rules.into());
    // If it is not known, it is not a number, which no alert takes for one.
    gauge!("ringfence_raft_rules_supported").set(status.rules_supported.map_or(f64::NAN, f64::from));
    set("ringfence_revision", status.revision.0);
    set("ringfence_leases_live", status.live_leases);
    set("ringfence_waiters", status.waiters);
}
