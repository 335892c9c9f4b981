//! Metrics of RESP. Labels are names of commands and reasons, never text from a client.

use std::time::Duration;

use ringfence_metric::{Counter, Histogram, metrics};

use crate::refused::Kind;

/// The label of unknown commands.
pub(crate) const OTHER: &str = "other";

const SCRIPTS: &[&str] = &["load", "run"];

metrics! {
    pub METRICS;
    SECONDS: Histogram = Histogram::new(
        "ringfence_resp_request_duration_seconds",
        "Time from a request over the Redis protocol to its response, or to the end of its connection, by command.",
    ).by("command", &[OTHER]);
    REFUSED: Counter = Counter::new(
        "ringfence_resp_refused_total",
        "Requests over the Redis protocol that this node answered with an error, by reason.",
    ).by("reason", Kind::NAMES);
    SCRIPTS_REFUSED: Counter = Counter::new(
        "ringfence_resp_scripts_refused_total",
        "Scripts that this node could not load, and runs of scripts that failed.",
    ).by("at", SCRIPTS);
    CALLS_REFUSED: Counter = Counter::new(
        "ringfence_resp_calls_refused_total",
        "Scripts over the Redis protocol that this node refused, at loading or in a run, for a command that they call, by command.",
    ).by("command", &[OTHER]);
    RERUNS: Counter = Counter::new(
        "ringfence_resp_reruns_total",
        "Times that this node ran a request again, because what it had read was old or changed meanwhile.",
    );
}

/// A request came to an end.
pub(crate) fn ended(command: &'static str, took: Duration) {
    SECONDS.of(command).record(took);
}

/// A request was answered with an error.
pub(crate) fn refused(kind: Kind) {
    REFUSED.of(kind.name()).increment(1);
}

/// A script could not be loaded.
pub(crate) fn script_refused() {
    SCRIPTS_REFUSED.of("load").increment(1);
}

/// A run of a script failed.
pub(crate) fn script_failed() {
    SCRIPTS_REFUSED.of("run").increment(1);
}

/// A script was refused for a call of this command.
pub(crate) fn call_refused(command: &'static str) {
    CALLS_REFUSED.of(command).increment(1);
}

/// A request ran `times` more times after its first run.
pub(crate) fn reran(times: u64) {
    RERUNS.get().increment(times);
}
