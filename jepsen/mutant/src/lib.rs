//! Ways to build Ringfence wrong on purpose: whoever says that it holds has to show that he would notice if it did not.
//!
//! A *mutant* is one known mistake. Where it would be made, the product asks `ringfence_mutant::is(Mutant::…)`, which is
//! `false` at compile time unless the feature `mutants` of the program is on: then nothing of it is left in the program.
//! With the feature, the program takes the name of one mutant from its environment (`RINGFENCE_MUTANT`), once, before
//! anything else; all others ask only here. So a room stays what it is: a function of what it is told, in a program that is
//! built right or wrong.
//!
//! The feature does not compile in a release build. `ringfence-jepsen mutants` builds with it, beside everything else, and
//! shows that each mutant is caught.

#[cfg(all(feature = "on", not(debug_assertions)))]
compile_error!(
    "a program that is wrong on purpose is never built for release: do without the feature `mutants`"
);

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $mutant:ident $name:literal)+) => {
        /// A known way to be wrong.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $mutant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$mutant),+];

            /// Its name: a few words with dashes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$mutant => $name,)+
                }
            }
        }
    };
}

mutants! {
    /// What is to be written counts as written when it is queued; the disk gets it a moment later.
    AcknowledgesBeforeFlush "acknowledges-before-flush"
    /// A vote is remembered only as long as the process lives.
    ForgetsVotes "forgets-votes"
    /// The leader's clock follows the wall clock.
    ExpiresByWallClock "expires-by-wall-clock"
    /// A leader's clock goes on when nobody follows it, and counts on from there when it leads again.
    DeposedLeaderExpires "deposed-leader-expires"
    /// A table that is restored counts its changes on from its newest lease.
    RevisionLeftOutOfSnapshot "revision-left-out-of-snapshot"
    /// Each leader starts the numbering of changes anew.
    TokensStartAnew "tokens-start-anew"
    /// A read that is to be linearizable is answered from the node's own table.
    ReadsLocally "reads-locally"
    /// Whoever believes to lead answers reads without asking a quorum.
    ReadsUnconfirmed "reads-unconfirmed"
    /// A repeated acquire makes a new grant in place of the one that stands.
    RepeatGrantsTwice "repeat-grants-twice"
    /// An acquire of a lease that ended grants it again.
    ForgetsEnds "forgets-ends"
    /// A release of a live lease is answered, and nothing is done.
    ReleasesNothing "releases-nothing"
    /// A renewal is answered, and the lease ends as if it had not come.
    RenewsNothing "renews-nothing"
    /// A detach ends the lease though a newer acquire or a renewal came.
    DetachesNewer "detaches-newer"
    /// Of what is due at once, leases end first, and a waiter is granted though its own wait is over.
    GrantsLateWaiters "grants-late-waiters"
    /// Who shares a key is let in past a waiter who does not.
    SharedOvertakes "shared-overtakes"
    /// Who wants a key alone is let in beside those who share it.
    ExclusiveBesideShared "exclusive-beside-shared"
    /// What may have been done is answered as certainly not done.
    UnknownAsNotDone "unknown-as-not-done"
    /// The mirror writes what it has, whatever stands in Redis.
    MirrorsBlindly "mirrors-blindly"
    /// The mirror writes fences beside the revision of an earlier look at the table.
    MirrorsLaterFences "mirrors-later-fences"
    /// A grant is called mirrored without a look at Redis.
    MirroredUnseen "mirrored-unseen"
    /// The mirror is not told of ends.
    MirrorsNoEnds "mirrors-no-ends"
    /// A node that lost its data is let back in as the member it was.
    LetsWipedNodeIn "lets-wiped-node-in"
}

#[cfg(feature = "on")]
static CHOSEN: std::sync::OnceLock<Mutant> = std::sync::OnceLock::new();

/// Whether this program is this mutant.
#[cfg(feature = "on")]
pub fn is(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(&mutant)
}

/// Whether this program is this mutant: it is none.
#[cfg(not(feature = "on"))]
#[inline(always)]
pub const fn is(_: Mutant) -> bool {
    false
}

/// Makes this program the mutant of that name. To be called before anything else, and once.
#[cfg(feature = "on")]
pub fn choose(name: &str) -> Result<(), String> {
    let mutant = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
    let mutant = mutant.ok_or_else(|| format!("there is no mutant {name:?}"))?;
    CHOSEN.set(*mutant).map_err(|_| "a program is one mutant at most".to_owned())
}
