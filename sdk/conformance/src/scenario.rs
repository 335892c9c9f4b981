//! A scenario, and the table of all.

use anyhow::ensure;
use clap::ValueEnum;
use futures_util::future::LocalBoxFuture;

use crate::scenarios::{
    acquire, adopt, deadline, handles, holding, interrupt, lead, leaving, live, loss, many, nodes, outcome,
    secure, waiting,
};
use crate::stage::Stage;

/// How much to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// What takes seconds, for every change.
    Quick,
    /// With what has to wait for the ends of leases, and for leaders.
    Standard,
    /// With what takes as long as an outage.
    All,
}

/// Plays a scenario on its stage. An error says what was wrong.
pub type Play = for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// One rule that every client library keeps.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What has to come of it.
    pub name: &'static str,
    /// The first tier that has it.
    pub tier: Tier,
    /// What the library has to offer, as PROTOCOL.md names it.
    pub needs: &'static [&'static str],
    /// Whether it hurts nodes.
    pub is_live: bool,
    /// Plays it.
    pub play: Play,
}

macro_rules! scenarios {
    ($($name:literal $tier:ident [$($need:literal)*] $kind:ident $play:path;)*) => {
        /// All scenarios.
        pub const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: $name,
            tier: Tier::$tier,
            needs: &[$($need),*],
            is_live: scenarios!(@ $kind),
            play: |stage| Box::pin($play(stage)),
        }),*];
    };
    (@ played) => { false };
    (@ live) => { true };
}

scenarios! {
    "grant-answer-lost-found-by-repeat" Quick [] played acquire::grant_answer_lost;
    "refused-connection-is-unavailable" Quick [] played outcome::refused_connection;
    "503-then-grant-elsewhere" Quick [] played outcome::unavailable_then_grant;
    "504-then-503s-is-unknown-and-deleted" Quick [] played outcome::indeterminate_is_sticky;
    "proxy-502-is-unknown" Quick [] played outcome::proxy_502;
    "half-answer-is-unknown" Quick [] played outcome::half_answer;
    "html-200-is-unknown" Quick [] played outcome::html_200;
    "redirect-not-followed" Quick [] played outcome::redirect;
    "held-names-holders" Quick [] played acquire::held_names_holders;
    "refusal-after-doubt-still-deletes" Quick [] played outcome::refusal_after_doubt;
    "429-waits" Quick [] played outcome::too_many;
    "doubtful-grant-renewed-first" Quick [] played acquire::doubtful_grant;
    "waited-grant-renewed-first" Standard [] played waiting::waited_grant;
    "wait-sliced-keeping-place" Quick [] played waiting::wait_sliced;
    "place-then-no-leader-is-given-back" Quick [] played waiting::place_then_no_leader;
    "id-ended-unseen-takes-new-id" Quick [] played acquire::id_ended_unseen;
    "revoked-not-retried" Quick [] played acquire::revoked;
    "cancel-while-waiting-deletes" Quick ["cancel"] played waiting::cancel_while_waiting;
    "cancel-racing-grant-deletes" Quick ["cancel"] played waiting::cancel_racing_grant;
    "leader-hint-followed" Quick [] played nodes::leader_hint;
    "failed-hint-passed-over" Quick [] played nodes::failed_hint;
    "vanished-node-is-left" Quick [] played nodes::vanished;
    "node-with-a-hung-thread-is-left" Quick [] played nodes::thread_hangs;
    "wait-is-left-only-for-another" Quick [] played nodes::left_for_another;
    "invalid-key-sends-nothing" Quick [] played acquire::invalid;
    "many-leases-one-renewal" Quick [] played holding::many_leases;
    "renew-answered-past-deadline-stays-lost" Standard [] played loss::late_renewal;
    "older-answer-late-changes-nothing" Quick ["shared"] played holding::older_answer;
    "hung-renewal-tries-next-in-time" Standard [] played holding::hung_renewal;
    "410-lost-with-reason-others-live" Quick [] played loss::revoked_while_held;
    "unknown-then-held-again" Standard [] played holding::unsure_then_held;
    "suspend-lost-before-timers" Quick ["clock"] played loss::suspended;
    "stopped-process-lost-at-first-look" Quick [] played loss::stopped;
    "blocked-loop-lost-and-told" Quick ["block"] played loss::blocked;
    "fork-child-lost-and-silent" Quick ["fork"] played loss::forked;
    "max-hold-is-the-end" Quick ["max_hold"] played loss::max_hold;
    "body-error-not-masked" Quick ["using"] played leaving::body_error;
    "hold-at-least-outlives-the-body" Quick ["hold_at_least"] played leaving::hold_at_least;
    "release-after-expiry-raises-and-deletes" Quick [] played leaving::release_after_expiry;
    "double-release-harmless" Quick [] played leaving::double_release;
    "unknown-release-goes-on-and-close-waits" Standard [] played leaving::unknown_release;
    "token-2^53-1-exact" Quick [] played acquire::largest_token;
    "headers-encode-key-and-renewed-fence" Quick ["headers" "shared"] played holding::headers;
    "leader-killed-lease-and-place-survive" Standard [] live live::leader_killed;
    "all-nodes-killed-lease-survives" Standard [] live live::all_killed;
    "waiter-survives-an-outage" All [] live live::outage;
    "cut-off-holder-stops-before-successor-and-guard-rejects-it" Quick [] played loss::cut_off;
    "credential-only-over-verified-https" Quick ["tls" "credential"] played secure::credential;
    "wrong-authority-is-unavailable-and-says-why" Quick ["tls"] played secure::wrong_authority;
    "adopted-lease-renews-and-is-released-once" Quick ["adopt"] played adopt::adopted;
    "many-calls-each-their-own-answer" Quick [] played many::each_its_own;
    "many-calls-one-cancelled" Quick ["cancel"] played many::one_is_cancelled;
    "many-calls-answers-lost-found-by-repeat" Quick [] played many::answers_are_lost;
    "many-calls-half-refused" Quick [] played many::half_are_refused;
    "many-calls-half-wait" Quick [] played many::half_wait;
    "block-left-elsewhere-is-released" Quick ["leave"] played handles::left_elsewhere;
    "dropped-handle-is-released" Quick ["drop"] played handles::dropped;
    "dropped-handle-is-reported" Quick ["drop" "leaked"] played handles::dropped_is_reported;
    "end-in-the-queue-leaves-no-place" Quick ["exit"] played handles::ends_in_the_queue;
    "end-before-the-grant-gives-it-back" Quick ["exit"] played handles::ends_before_the_grant;
    "end-during-a-release-has-released" Quick ["exit"] played handles::ends_during_a_release;
    "end-after-a-drop-has-released" Quick ["exit" "drop"] played handles::ends_after_a_drop;
    "on-lost-raises-body-is-stopped" Quick ["using" "on_lost"] played handles::callback_raises;
    "on-lost-blocks-others-are-renewed" Quick ["on_lost_block"] played handles::callback_blocks;
    "loss-swallowed-is-still-lost" Quick ["using"] played handles::swallowed;
    "ended-once-by-either-clock" Quick ["clock"] played loss::either_clock;
    "lead-ends-with-its-work" Quick ["lead"] played lead::ends_with_its_work;
    "lead-goes-on-after-a-loss" Quick ["lead"] played lead::goes_on_after_a_loss;
    "lead-goes-on-after-stale" Quick ["lead"] played lead::goes_on_after_stale;
    "lead-goes-on-after-stale-and-a-late-loss" Quick ["lead"] played lead::goes_on_after_a_late_loss;
    "deadline-bounds-acquire-and-gives-back" Quick ["deadline"] played deadline::acquire;
    "deadline-and-wait-say-which-was-over" Quick ["deadline"] played deadline::queue;
    "deadline-bounds-renew-and-release" Quick ["deadline"] played deadline::renew_and_release;
    "hold-at-least-by-release" Quick ["hold_at_least"] played leaving::hold_at_least_by_release;
    "hold-at-least-by-close-and-drop" Quick ["hold_at_least" "close" "drop"] played leaving::hold_at_least_by_others;
    "hold-at-least-in-an-outage" Standard ["hold_at_least"] played leaving::hold_at_least_in_an_outage;
    "close-releases-what-is-held" Quick ["close"] played leaving::close_releases;
    "close-tells-whoever-works-under-a-lease" Quick ["close" "using"] played leaving::close_tells;
    "close-within-says-what-it-left" Quick ["close"] played leaving::close_within;
    "close-by-itself-is-bounded" Standard ["close"] played leaving::close_by_default;
    "interrupted-wait-leaves-the-queue" Quick ["interrupt"] played interrupt::in_the_queue;
    "interrupted-acquire-gives-back-its-grant" Quick ["interrupt"] played interrupt::before_the_grant;
    "interrupted-body-is-released" Quick ["interrupt" "using"] played interrupt::in_a_body;
    "interrupted-twice-is-released" Quick ["interrupt" "using"] played interrupt::twice;
    "interrupted-release-goes-on" Quick ["interrupt"] played interrupt::in_a_release;
    "interrupted-close-goes-on" Quick ["interrupt" "close"] played interrupt::in_close;
    "interrupted-lead-is-released" Quick ["interrupt" "lead"] played interrupt::in_lead;
}

/// Those of a tier whose names contain `only`.
pub fn chosen(tier: Tier, only: Option<&str>) -> anyhow::Result<Vec<Scenario>> {
    let is_chosen = |scenario: &&Scenario| match only {
        // A scenario that is named is to be played.
        Some(only) => scenario.name.contains(only),
        None => scenario.tier <= tier,
    };
    let chosen: Vec<Scenario> = SCENARIOS.iter().filter(is_chosen).copied().collect();
    ensure!(!chosen.is_empty(), "--only {}: no scenario has that in its name", only.unwrap_or_default());
    Ok(chosen)
}
