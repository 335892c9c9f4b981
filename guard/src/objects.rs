//! An object that late writers cannot overwrite, in any store of the crate `object_store` that has conditional puts.
//!
//! ```text
//!  get: number, data, version ─▶ token ≥ number? ─▶ put, if the version is unchanged ─┬─▶ Accepted
//!           ▲                                                                         │
//!           └────────────── another put was first: retry, a limited number of times ──┘
//! ```
//! **The number is in the object, before the data** (`ringfence-guard 1 4⏎`), and not in its metadata. The condition
//! is the entity tag, which S3 derives from the contents: "the ETag reflects changes only to the contents of an
//! object, not its metadata". A touch that changed only the metadata would keep the tag, and a late write that had
//! read before the touch would land after it and lower the number. It also works in stores without metadata.
//!
//! **Stores.** S3, GCS, Azure and the in-memory store have conditional puts. Some S3-compatible stores accept the
//! condition and ignore it, and some proxies drop it; so [`GuardedObject::create`] tries two puts that must fail, and
//! refuses a store where one succeeds. Open objects only in stores where one was created. The local file system store
//! has no conditional puts: use [`GuardedFile`](crate::GuardedFile) there.
//!
//! **Cost.** A touch that raises the number rewrites the whole object. Guard a small object that names others written
//! once (a manifest), not a large one.
//!
//! **A put that the store itself retries** after losing the answer finds its own first attempt, and reports a lost
//! race. It is tried again here, which is harmless; but if a newer holder came between, a write that did land, before that
//! holder touched, is answered `Stale`. Set the store's own retries to 0 if that matters.

use std::sync::Arc;

use bytes::Bytes;
use object_store::Error as StoreError;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use ringfence_wire::Token;

use crate::contents::{decode, encode};
use crate::{Admission, Claim, ClaimError, Contents, High};

/// The contents of an object being created. Nobody is admitted to it.
const PROBE: &[u8] = b"ringfence-guard is being made\n";

/// How often an update is tried while others are first.
const TRIES: usize = 50;

/// A guarded object.
#[derive(Clone, Debug)]
pub struct GuardedObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

/// Why an object could not be read or changed. Except for [`Store`](Self::Store), nothing was.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The store failed. A put may or may not have been done.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object has another format: its number may have been higher than any.
    #[error("{0} is no guarded object")]
    NotGuarded(Path),
    /// The store ignores the condition of a put, so it can guard nothing. The new object was deleted again.
    #[error(
        "the store does not keep to the conditions of puts (`If-Match`, `If-None-Match`): {0} cannot be guarded"
    )]
    Unconditional(Path),
    /// Others changed the object in each try between the get and the put.
    #[error("{0} was changed by others each of {TRIES} times that it was tried")]
    Contended(Path),
    /// An operator's number is not a fence.
    #[error(transparent)]
    Fence(#[from] ClaimError),
}

type Result<T> = std::result::Result<T, ObjectError>;

impl GuardedObject {
    /// The guarded object at `path`, created before.
    pub fn open(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self { store, path }
    }

    /// Creates the object, in which no token is dead yet. It must not exist. Fails if the store ignores the conditions of
    /// puts.
    ///
    /// After another error of the store, an object that is not guarded may remain: delete it.
    pub async fn create(store: Arc<dyn ObjectStore>, path: Path, data: &[u8]) -> Result<Self> {
        let object = Self::open(store, path);
        // A store that ignores the condition would overwrite an existing object.
        match object.store.head(&object.path).await {
            Ok(_) => {
                let path = object.path.to_string();
                return Err(StoreError::AlreadyExists { source: "found by HEAD".into(), path }.into());
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let first = object.put(PROBE, PutMode::Create).await?;
        let filled = object.fill(first, &encode(High::NEW, data)).await;
        if let Err(ObjectError::Unconditional(_) | ObjectError::Store(StoreError::NotImplemented { .. })) =
            filled
        {
            object.store.delete(&object.path).await?;
        }
        filled.map(|()| object)
    }

    /// Replaces the probe, and checks that neither a second creation nor a second replacement of the probe succeeds.
    async fn fill(&self, probe: UpdateVersion, contents: &[u8]) -> Result<()> {
        match self.put(PROBE, PutMode::Create).await {
            Err(StoreError::AlreadyExists { .. }) => {}
            Ok(_) => return Err(ObjectError::Unconditional(self.path.clone())),
            Err(error) => return Err(error.into()),
        }
        self.put(contents, PutMode::Update(probe.clone())).await?;
        match self.put(contents, PutMode::Update(probe)).await {
            Err(StoreError::Precondition { .. }) => Ok(()),
            Ok(_) => Err(ObjectError::Unconditional(self.path.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the object. A new holder touches it first.
    pub async fn read(&self) -> Result<Contents<Bytes>> {
        let (high, data, _) = self.get().await?;
        Ok(Contents { high: high.token(), data })
    }

    /// Shuts out every holder below the claim's fence. Call it before the first read. The data stay.
    pub async fn touch(&self, claim: Claim) -> Result<Admission> {
        self.update(None, |high| high.admit(claim)).await
    }

    /// Replaces the data, unless the token is dead, and shuts out every holder below the fence, as `touch` does.
    pub async fn write(&self, claim: Claim, data: &[u8]) -> Result<Admission> {
        self.update(Some(data), |high| high.admit(claim)).await
    }

    /// The number.
    pub async fn high(&self) -> Result<Token> {
        self.read().await.map(|contents| contents.high)
    }

    /// Sets the number, down as well, to a fence of the key from the cluster. The data stay.
    pub async fn reset(&self, fence: Token) -> Result<()> {
        let new = High::reset(fence)?;
        let set = |high: &mut High| {
            *high = new;
            Admission::Accepted(())
        };
        self.update(None, set).await.map(drop)
    }

    async fn update(&self, data: Option<&[u8]>, rule: impl Fn(&mut High) -> Admission) -> Result<Admission> {
        for _ in 0..TRIES {
            let (old, old_data, version) = self.get().await?;
            let mut high = old;
            let admission = rule(&mut high);
            // The number is as wanted: earlier holders are shut out already.
            let is_unchanged = data.is_none() && high == old;
            if !admission.is_accepted() || is_unchanged {
                return Ok(admission);
            }
            let contents = encode(high, data.unwrap_or(&old_data));
            match self.put(&contents, PutMode::Update(version)).await {
                Ok(_) => return Ok(admission),
                Err(StoreError::Precondition { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ObjectError::Contended(self.path.clone()))
    }

    async fn get(&self) -> Result<(High, Bytes, UpdateVersion)> {
        let found = self.store.get(&self.path).await?;
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await?;
        let (high, data) = decode(&bytes).ok_or_else(|| ObjectError::NotGuarded(self.path.clone()))?;
        Ok((high, bytes.slice(data..), version))
    }

    async fn put(&self, contents: &[u8], mode: PutMode) -> object_store::Result<UpdateVersion> {
        let contents = Bytes::copy_from_slice(contents);
        self.store.put_opts(&self.path, contents.into(), mode.into()).await.map(UpdateVersion::from)
    }
}
