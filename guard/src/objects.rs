//! An object that late writers cannot overwrite, in any store of the crate `object_store` that has conditional puts.
//!
//! ```text
//!  get: number, data, version ─▶ token ≥ number? ─▶ put, if the version is still that one ─┬─▶ Accepted
//!           ▲                                                                              │
//!           └────────────── somebody else was first: again, a limited number of times ─────┘
//! ```
//! **The number stands in the object, before the data** (`ringfence-guard 1 4⏎`), and not in its metadata. The condition
//! is the entity tag, and of S3 that is a hash of the contents: "the ETag reflects changes only to the contents of an
//! object, not its metadata". A touch that changed only the metadata would leave it as it was, and a late write that had
//! looked before the touch would land after it, and lower the number. It also works where a store keeps no metadata.
//!
//! **Where it works.** S3, GCS, Azure and the store in memory have conditional puts. Some stores that speak like S3 take the
//! condition and ignore it, and some proxies drop it; so [`GuardedObject::create`] tries two puts that have to fail, and
//! refuses a store where one lands. Open objects only in stores where one was created. The local file system's store has no
//! conditional puts; take [`GuardedFile`](crate::GuardedFile) there.
//!
//! **What it costs.** A touch that raises the number writes the whole object again. So guard a small one, that names others
//! which are written once (a manifest), and not what is large.
//!
//! **A put that is repeated by the store itself** after its answer was lost finds its own first try, and calls that a lost
//! race. It is tried again here, which is harmless; but if a newer holder came between, `Stale` is the answer to a write
//! that did land, before that holder touched. Who has to tell sets the store's own retries to 0.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use ringfence_wire::Token;

use crate::{Admission, Claim, ClaimError, High, head};

/// What stands in an object that is being made. It is no guarded object: nobody gets in.
const PROBE: &[u8] = b"ringfence-guard is being made\n";

/// How often a change is tried while others are first.
const TRIES: usize = 50;

/// A guarded object.
#[derive(Clone, Debug)]
pub struct GuardedObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

/// What stands in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Every token below it is dead.
    pub high: Token,
    /// As they were last written.
    pub data: Bytes,
}

/// Why an object could not be read or changed. But for [`Store`](Self::Store), nothing was.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The store failed. A put may or may not have been done.
    #[error(transparent)]
    Store(#[from] object_store::Error),
    /// Something else stands there: its number may have been higher than any.
    #[error("{0} is no guarded object")]
    NotGuarded(Path),
    /// The store ignores the condition of a put: it can guard nothing. What was made there was deleted again.
    #[error(
        "the store does not keep to the conditions of puts (`If-Match`, `If-None-Match`): {0} cannot be guarded"
    )]
    Unconditional(Path),
    /// Others changed it each time between the look and the put.
    #[error("{0} was changed by others each of {TRIES} times that it was tried")]
    Contended(Path),
    /// An operator's fence is none.
    #[error(transparent)]
    Fence(#[from] ClaimError),
}

type Result<T> = std::result::Result<T, ObjectError>;

impl GuardedObject {
    /// The guarded object at `path`, which was once created.
    pub fn open(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self { store, path }
    }

    /// Makes the object, in which no token is dead yet. It must not be there. A store that does not keep to the conditions of
    /// puts is an error.
    ///
    /// After another error of the store, something may be left that is no guarded object, and is to be deleted.
    pub async fn create(store: Arc<dyn ObjectStore>, path: Path, data: &[u8]) -> Result<Self> {
        let object = Self::open(store, path);
        // A store that ignores the condition would overwrite what is there.
        match object.store.head(&object.path).await {
            Ok(_) => {
                let path = object.path.to_string();
                return Err(
                    object_store::Error::AlreadyExists { source: "found by HEAD".into(), path }.into()
                );
            }
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let first = object.put(PROBE, PutMode::Create).await?;
        let made = object.fill(first, &head::encode(High::NEW, data)).await;
        if matches!(
            made,
            Err(ObjectError::Unconditional(_)
                | ObjectError::Store(object_store::Error::NotImplemented { .. }))
        ) {
            object.store.delete(&object.path).await?;
        }
        made.map(|()| object)
    }

    /// Puts the contents in place of the probe, and sees that neither a second creation nor a put in place of what is there no
    /// more can land.
    async fn fill(&self, probe: UpdateVersion, contents: &[u8]) -> Result<()> {
        match self.put(PROBE, PutMode::Create).await {
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Ok(_) => return Err(ObjectError::Unconditional(self.path.clone())),
            Err(error) => return Err(error.into()),
        }
        self.put(contents, PutMode::Update(probe.clone())).await?;
        match self.put(contents, PutMode::Update(probe)).await {
            Err(object_store::Error::Precondition { .. }) => Ok(()),
            Ok(_) => Err(ObjectError::Unconditional(self.path.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// What stands in the object. A new holder touches it first.
    pub async fn read(&self) -> Result<Contents> {
        let (high, data, _) = self.get().await?;
        Ok(Contents { high: high.token(), data })
    }

    /// Shuts out every holder below the claim's fence: to be done before the first read. The data stay as they are.
    pub async fn touch(&self, claim: Claim) -> Result<Admission> {
        self.update(claim, None).await
    }

    /// Replaces the data, unless the token is dead; and shuts out every holder below the fence, as `touch` does.
    pub async fn write(&self, claim: Claim, data: &[u8]) -> Result<Admission> {
        self.update(claim, Some(data)).await
    }

    /// The number.
    pub async fn high(&self) -> Result<Token> {
        self.read().await.map(|contents| contents.high)
    }

    /// Sets the number, down as well, to a fence of the key that the cluster gave. The data stay as they are.
    pub async fn reset(&self, fence: Token) -> Result<()> {
        let new = High::reset(fence)?;
        for _ in 0..TRIES {
            let (_, data, version) = self.get().await?;
            if self.replace(new, &data, version).await? {
                return Ok(());
            }
        }
        Err(ObjectError::Contended(self.path.clone()))
    }

    async fn update(&self, claim: Claim, data: Option<&[u8]>) -> Result<Admission> {
        for _ in 0..TRIES {
            let (old, old_data, version) = self.get().await?;
            let mut high = old;
            let admission = high.admit(claim);
            // What a touch would raise is there already: whoever is below it was shut out by who raised it.
            let nothing_to_do = data.is_none() && high == old;
            if !admission.is_accepted()
                || nothing_to_do
                || self.replace(high, data.unwrap_or(&old_data), version).await?
            {
                return Ok(admission);
            }
        }
        Err(ObjectError::Contended(self.path.clone()))
    }

    async fn get(&self) -> Result<(High, Bytes, UpdateVersion)> {
        let found = self.store.get(&self.path).await?;
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await?;
        let (high, data) = head::decode(&bytes).ok_or_else(|| ObjectError::NotGuarded(self.path.clone()))?;
        Ok((high, bytes.slice(data..), version))
    }

    /// Whether nobody else was first.
    async fn replace(&self, high: High, data: &[u8], version: UpdateVersion) -> Result<bool> {
        match self.put(&head::encode(high, data), PutMode::Update(version)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn put(&self, contents: &[u8], mode: PutMode) -> object_store::Result<UpdateVersion> {
        let contents = Bytes::copy_from_slice(contents);
        self.store.put_opts(&self.path, contents.into(), mode.into()).await.map(UpdateVersion::from)
    }
}
