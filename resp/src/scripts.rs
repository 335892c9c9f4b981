//! The scripts that a node remembers, by the digests of their texts.
//!
//! Each principal has scripts of its own, which no other principal can push out or flush. The memory of all scripts has a bound. Beyond it,
//! the principal whose scripts take most loses the script that it used longest ago. Its client then sends the text again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_room::Account;
use ringfence_script::Script;
use ringfence_wire::PrincipalName;
use sha1_smol::Sha1;

/// How much memory all scripts may take.
const MAX_BYTES: usize = 4 << 20;
/// The memory of a script besides its code.
const OVERHEAD: usize = 256;

/// The SHA-1 of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 20]);

/// The scripts of all principals.
#[derive(Debug)]
pub(crate) struct Scripts {
    max_bytes: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    of: HashMap<Option<PrincipalName>, Own>,
    bytes: Account<Option<PrincipalName>>,
    /// How often any of them was used.
    uses: u64,
}

/// The scripts of a principal.
#[derive(Debug, Default)]
struct Own {
    scripts: HashMap<Digest, (Arc<Script>, u64)>,
    /// The scripts in the order of their last use.
    by_use: BTreeMap<u64, Digest>,
}

impl Digest {
    pub(crate) fn of(text: &[u8]) -> Self {
        Self(Sha1::from(text).digest().bytes())
    }

    /// Reads 40 hexadecimal digits.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (pairs, []) = text.as_chunks::<2>() else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|&[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok()).collect();
        bytes?.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl Scripts {
    fn new(max_bytes: usize) -> Self {
        Self { max_bytes, known: Mutex::default() }
    }

    /// A script of a principal.
    pub(crate) fn get(&self, of: Option<&PrincipalName>, digest: Digest) -> Option<Arc<Script>> {
        let mut known = self.known();
        known.uses += 1;
        let now = known.uses;
        let own = known.of.get_mut(&of.cloned())?;
        let (script, used) = own.scripts.get_mut(&digest)?;
        let script = Arc::clone(script);
        own.by_use.remove(&std::mem::replace(used, now));
        own.by_use.insert(now, digest);
        Some(script)
    }

    /// Remembers a script for a principal.
    pub(crate) fn add(&self, of: Option<&PrincipalName>, digest: Digest, script: Arc<Script>) {
        let (of, mut known) = (of.cloned(), self.known());
        let known = &mut *known;
        known.uses += 1;
        let (now, bytes) = (known.uses, script.size() + OVERHEAD);
        let own = known.of.entry(of.clone()).or_default();
        if let Some((_, used)) = own.scripts.insert(digest, (script, now)) {
            own.by_use.remove(&used);
        } else {
            known.bytes.add(&of, bytes);
        }
        own.by_use.insert(now, digest);
        while known.bytes.all() > self.max_bytes {
            known.forget_one();
        }
    }

    /// Forgets all scripts of a principal.
    pub(crate) fn flush(&self, of: Option<&PrincipalName>) {
        let (of, mut known) = (of.cloned(), self.known());
        known.of.remove(&of);
        let bytes = known.bytes.of(&of);
        known.bytes.remove(&of, bytes);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics while the scripts are locked")
    }
}

impl Known {
    fn forget_one(&mut self) {
        let most = self.bytes.greediest().expect("somebody has the scripts that take too much").clone();
        let own = self.of.get_mut(&most).expect("whose bytes count has scripts");
        let (_, digest) = own.by_use.pop_first().expect("who has most has one");
        let (script, _) = own.scripts.remove(&digest).expect("every script is listed by its use");
        self.bytes.remove(&most, script.size() + OVERHEAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> PrincipalName {
        PrincipalName::new(name).unwrap()
    }

    fn load(scripts: &Scripts, of: &PrincipalName, text: &str) -> Digest {
        let digest = Digest::of(text.as_bytes());
        scripts.add(Some(of), digest, Arc::new(Script::parse(text.as_bytes(), |_| Ok(())).unwrap()));
        digest
    }

    #[test]
    fn a_digest_is_that_of_redis() {
        let digest = Digest::of(b"return 1");
        assert_eq!(digest.to_string(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(Digest::parse(digest.to_string().to_uppercase().as_bytes()), Some(digest));
        for wrong in [
            "",
            "e0",
            "e0e1f9fabfc9d4800c877a703b823ac0578ff8dbe0",
            "x0e1f9fabfc9d4800c877a703b823ac0578ff8db",
        ] {
            assert_eq!(Digest::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_principal_with_many_scripts_runs_out_its_own() {
        let scripts = Scripts::new(20_000);
        let (few, many) = (name("few"), name("many"));
        let kept = load(&scripts, &few, "return 'few'");
        let first = load(&scripts, &many, "return 'first'");
        let used = load(&scripts, &many, "return 'used'");
        for number in 0..1_000 {
            load(&scripts, &many, &format!("return {number}"));
            assert!(scripts.get(Some(&many), used).is_some(), "{number}");
        }
        assert!(scripts.get(Some(&few), kept).is_some());
        assert!(scripts.get(Some(&many), first).is_none());
        assert!(scripts.known().bytes.all() <= 20_000);
        let newest = Digest::of(b"return 999");
        assert!(scripts.get(Some(&many), newest).is_some());
        assert!(scripts.get(Some(&few), newest).is_none() && scripts.get(None, newest).is_none());
    }

    #[test]
    fn a_flush_is_of_ones_own() {
        let scripts = Scripts::new(20_000);
        let (one, other) = (name("one"), name("other"));
        let digest = load(&scripts, &one, "return 1");
        for _ in 0..3 {
            load(&scripts, &other, "return 1");
        }
        scripts.flush(Some(&one));
        assert!(scripts.get(Some(&one), digest).is_none() && scripts.get(Some(&other), digest).is_some());
        scripts.flush(Some(&other));
        assert_eq!(scripts.known().bytes.all(), 0);
    }
}
