use ringfence_wire::RulesRange;

/// The rules that this program knows. Every change of what [`apply`](crate::LeaseTable::apply) decides, or of the bytes of
/// commands and snapshots, makes a new version of the rules.
///
/// - 2: requests name who gave them, with quotas; leases and ended ids have owners; all leases together have a bound.
/// - 3: an entry has a floor, which the revision is raised to.
/// - 4: leases may have a value; [`Command::Conditional`](crate::Command::Conditional).
/// - 5: the names of the Redis protocol are other keys than before ([`NAMES`]), some of which only conditionals acquire. Large log
///   entries are compressed.
pub const SUPPORTED: RulesRange = RulesRange { oldest: 1, newest: 5 };

/// The first rules under which a name of the Redis protocol is the same key as over HTTP.
///
/// Before, a name was another key if it was in a database, or had a `%` or a byte that no key has. If two programs make two keys of a name,
/// they grant it twice. So nobody uses the new keys under older rules, and no lock has an old key when the rules are raised.
pub const NAMES: u8 = 5;

/// The first rules under which leases have owners.
pub(crate) const OWNERS: u8 = 2;

/// The first rules under which leases may have values.
pub(crate) const VALUES: u8 = 4;

/// The rules of every new table.
pub(crate) const FIRST: u8 = 1;

/// A program does not know the rules that a cluster uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this cluster uses rules {found}, and this program supports rules {supported}: start {}",
    remedy(*found, *supported)
)]
pub struct UnsupportedRules {
    /// The rules that the cluster uses, or used for this data.
    pub found: u8,
    /// What the program supports.
    pub supported: RulesRange,
}

impl UnsupportedRules {
    /// An error unless `rules` are `supported`.
    pub fn check(rules: u8, supported: RulesRange) -> Result<(), Self> {
        if supported.contains(rules) { Ok(()) } else { Err(Self { found: rules, supported }) }
    }
}

fn remedy(found: u8, supported: RulesRange) -> &'static str {
    match found > supported.newest {
        true => "the version of ringfence that the other members run, or a newer one",
        false => "an older version of ringfence, and raise the rules there before the upgrade",
    }
}
