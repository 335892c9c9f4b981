//! Files that are looked at again and again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::files::Content;
use crate::{Error, InUse};

/// What a look at the files found.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Same,
    /// A change, which counts if the next look finds it, too.
    Changing,
    /// New files, which are in use from now on.
    Loaded,
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
}

/// Makes a `T` of the content of its files.
type Load<T> = Box<dyn Fn(&[Content]) -> Result<T, Error> + Send + Sync>;

/// A `T`, made of the content of files.
pub struct Watched<T> {
    files: Vec<PathBuf>,
    load: Load<T>,
    seen: Mutex<Seen>,
    current: RwLock<Arc<T>>,
    version: AtomicU64,
}

struct Seen {
    loaded: Vec<Content>,
    /// What one look found.
    pending: Option<Vec<Content>>,
    refusal: Option<Error>,
}

impl<T> Watched<T> {
    /// Loads the files. `load` gets their contents in the same order.
    ///
    /// # Errors
    /// `load` cannot use them.
    pub fn load(
        files: Vec<PathBuf>,
        load: impl Fn(&[Content]) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let loaded = read(&files);
        let current = RwLock::new(Arc::new(load(&loaded)?));
        let seen = Mutex::new(Seen { loaded, pending: None, refusal: None });
        Ok(Self { files, load: Box::new(load), seen, current, version: AtomicU64::new(0) })
    }

    /// What is in use now.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rises whenever new files are in use.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// See [`Reload::look`].
    pub fn look(&self, at_once: bool) -> Look {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let found = read(&self.files);
        if found == seen.loaded {
            (seen.pending, seen.refusal) = (None, None);
            return Look::Same;
        }
        if !at_once && seen.pending.as_ref() != Some(&found) {
            seen.pending = Some(found);
            return Look::Changing;
        }
        // Files that were refused before are tried again, too: whether they are accepted may depend on other files.
        match (self.load)(&found) {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                self.version.fetch_add(1, Ordering::Release);
                *seen = Seen { loaded: found, pending: None, refusal: None };
                Look::Loaded
            }
            Err(error) => {
                seen.pending = Some(found);
                if seen.refusal.replace(error.clone()).as_ref() == Some(&error) && !at_once {
                    return Look::Same;
                }
                Look::Refused(error)
            }
        }
    }

    /// See [`Reload::refusal`].
    pub fn refusal(&self) -> Option<Error> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).refusal.clone()
    }
}

fn read(files: &[PathBuf]) -> Vec<Content> {
    files.iter().map(|file| Content::read(file)).collect()
}
