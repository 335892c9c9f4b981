//! Files that are looked at again and again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::files::Content;
use crate::{Error, InUse, now};

/// What a look at the files found.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Same,
    /// A change, which counts if the next look finds it, too.
    Changing,
    /// New files, which are in use from now on.
    Loaded,
    /// The same files, of which an authority has begun or ended: from now on, what it has signed is accepted, or refused.
    Aged,
    /// New files that cannot be used, or another reason why they cannot. The old ones stay in use.
    Refused(Error),
}

/// Something that was loaded from files, and can be loaded again.
pub trait Reload: Send + Sync {
    /// Looks at the files, and loads them if they changed: at once, or if two looks in a row found the same. Blocks while
    /// the files are read.
    fn look(&self, at_once: bool) -> Look;

    /// Why the files as they are now are not in use.
    fn refusal(&self) -> Option<Error>;

    /// The certificates in use.
    fn in_use(&self) -> Vec<InUse>;

    /// The files in use, and whether each has a private key.
    fn files(&self) -> Vec<(PathBuf, bool)>;
}

/// Makes a `T` of the content of its files, and lists the certificates in it. It gets those that are in use: what replaces them
/// must not be [worse](no_worse).
type Load<T> = Box<dyn Fn(&[Content], &[InUse]) -> Result<(T, Vec<InUse>), Error> + Send + Sync>;

/// A `T`, made of the content of files.
pub struct Watched<T> {
    files: Vec<PathBuf>,
    load: Load<T>,
    seen: Mutex<Seen>,
    current: RwLock<(Arc<T>, Vec<InUse>)>,
    version: AtomicU64,
}

struct Seen {
    loaded: Vec<Content>,
    /// Just before it was loaded, in seconds since the Unix epoch.
    at: i64,
    /// What one look found.
    pending: Option<Vec<Content>>,
    refusal: Option<Error>,
}

impl Seen {
    /// Notes a refusal. `None` if that is known, and nobody has asked.
    fn refuse(&mut self, error: Error, at_once: bool) -> Option<Look> {
        let is_known = self.refusal.replace(error.clone()).as_ref() == Some(&error);
        (at_once || !is_known).then_some(Look::Refused(error))
    }
}

impl<T> Watched<T> {
    /// Loads the files. `load` gets their contents in the same order, and the certificates in use, which are none at first; it returns
    /// those in what it has made.
    ///
    /// # Errors
    /// `load` cannot use them.
    pub fn new(
        files: Vec<PathBuf>,
        load: impl Fn(&[Content], &[InUse]) -> Result<(T, Vec<InUse>), Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (loaded, at) = (read(&files), now());
        let (first, in_use) = load(&loaded, &[])?;
        let current = RwLock::new((Arc::new(first), in_use));
        let seen = Mutex::new(Seen { loaded, at, pending: None, refusal: None });
        Ok(Self { files, load: Box::new(load), seen, current, version: AtomicU64::new(0) })
    }

    /// What is in use now.
    pub fn loaded(&self) -> Arc<T> {
        Arc::clone(&self.used().0)
    }

    /// Rises whenever something else is in use: ask again then for what followed from the former.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Loads again what is in use, if an authority has begun or ended since. Whatever the files are now: what has ended is not
    /// trusted on because what would replace it is refused.
    fn age(&self, seen: &mut Seen) -> Result<bool, Error> {
        let at = now();
        let has_changed = |one: &InUse| one.is_authority && one.is_live(seen.at) != one.is_live(at);
        if !self.used().1.iter().any(has_changed) {
            return Ok(false);
        }
        self.replace((self.load)(&seen.loaded, &[])?);
        seen.at = at;
        Ok(true)
    }

    fn replace(&self, (new, in_use): (T, Vec<InUse>)) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (Arc::new(new), in_use);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn used(&self) -> RwLockReadGuard<'_, (Arc<T>, Vec<InUse>)> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync> Reload for Watched<T> {
    fn look(&self, at_once: bool) -> Look {
        let mut seen = self.seen();
        let otherwise = match self.age(&mut seen) {
            Ok(true) => Look::Aged,
            Ok(false) => Look::Same,
            Err(error) => return seen.refuse(error, at_once).unwrap_or(Look::Same),
        };
        let found = read(&self.files);
        if found == seen.loaded {
            (seen.pending, seen.refusal) = (None, None);
            return otherwise;
        }
        if !at_once && seen.pending.as_ref() != Some(&found) {
            seen.pending = Some(found);
            return if otherwise == Look::Same { Look::Changing } else { otherwise };
        }
        // Files that were refused before are tried again, too: whether they are accepted may depend on other files, and on the time.
        let at = now();
        match (self.load)(&found, &self.in_use()) {
            Ok(new) => {
                self.replace(new);
                *seen = Seen { loaded: found, at, pending: None, refusal: None };
                Look::Loaded
            }
            Err(error) => {
                seen.pending = Some(found);
                seen.refuse(error, at_once).unwrap_or(otherwise)
            }
        }
    }

    fn refusal(&self) -> Option<Error> {
        self.seen().refusal.clone()
    }

    fn in_use(&self) -> Vec<InUse> {
        self.used().1.clone()
    }

    fn files(&self) -> Vec<(PathBuf, bool)> {
        let mut files: Vec<_> =
            self.seen().loaded.iter().map(|content| (content.file.clone(), content.has_key())).collect();
        // One file may have a certificate and its key.
        files.dedup();
        files
    }
}

/// Refuses certificates in place of `old`, if nobody accepts one of them now, and the like of `old` is accepted: they may be meant for
/// later.
pub(crate) fn no_worse(new: &[InUse], old: &[InUse]) -> Result<(), Error> {
    let now = now();
    let is_worse = |new: &&InUse| {
        let is_like = |old: &InUse| old.is_needed && old.is_authority == new.is_authority && old.is_live(now);
        new.is_needed && !new.is_live(now) && old.iter().any(is_like)
    };
    let Some(one) = new.iter().find(is_worse) else { return Ok(()) };
    let why = format!("the certificate of {} {}, and the one in use is valid", one.subject, one.when(now));
    Err(Error::file(&one.file, why))
}

fn read(files: &[PathBuf]) -> Vec<Content> {
    files.iter().map(|file| Content::read(file)).collect()
}
