//! Guarded objects in the stores of `object_store` that run here: in memory, and on the local file system.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use ringfence_guard::objects::{GuardedObject, ObjectError};
use ringfence_guard::{Admission, Claim, Contents};
use ringfence_wire::Token;

async fn made() -> (Arc<InMemory>, GuardedObject) {
    let store = Arc::new(InMemory::new());
    let object = GuardedObject::create(store.clone(), path(), b"100").await.unwrap();
    (store, object)
}

fn path() -> Path {
    Path::from("tables/orders/manifest")
}

fn exclusive(token: u64) -> Claim {
    Claim::exclusive(Token(token)).unwrap()
}

async fn write(object: &GuardedObject, token: u64, data: &str) -> Admission {
    object.write(exclusive(token), data.as_bytes()).await.unwrap()
}

fn contents<D: From<&'static str>>(high: u64, data: &'static str) -> Contents<D> {
    Contents { high: Token(high), data: data.into() }
}

#[tokio::test]
async fn a_late_write_is_rejected_and_changes_nothing() {
    let (_, object) = made().await;
    assert_eq!(write(&object, 2, "150").await, Admission::Accepted(()));
    assert_eq!(write(&object, 4, "130").await, Admission::Accepted(()));
    assert_eq!(write(&object, 2, "150").await, Admission::Stale { high: Token(4) });
    assert_eq!(
        write(&object, 4, "131").await,
        Admission::Accepted(()),
        "a holder writes as often as it likes"
    );
    assert_eq!(object.read().await.unwrap(), contents(4, "131"));
}

#[tokio::test]
async fn a_touch_shuts_out_earlier_holders_before_anything_is_written() {
    let (_, object) = made().await;
    assert_eq!(object.touch(exclusive(4)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(write(&object, 2, "150").await, Admission::Stale { high: Token(4) });
    assert_eq!(object.touch(exclusive(2)).await.unwrap(), Admission::Stale { high: Token(4) });
    assert_eq!(object.read().await.unwrap(), contents(4, "100"));
}

#[tokio::test]
async fn shared_holders_are_shut_out_below_the_fence_only() {
    let (_, object) = made().await;
    for (token, fence, accepted) in [(9, 5, true), (7, 5, true), (4, 3, false), (6, 2, true)] {
        let claim = Claim::new(Token(token), Token(fence)).unwrap();
        assert_eq!(object.write(claim, b"x").await.unwrap().is_accepted(), accepted, "{token}");
    }
    assert_eq!(object.high().await.unwrap(), Token(5));
}

/// The number is in the contents, so that entity tags derived from them change with it.
#[tokio::test]
async fn a_touch_changes_the_contents() {
    let (store, object) = made().await;
    let bytes = async || store.get(&path()).await.unwrap().bytes().await.unwrap();
    let before = bytes().await;
    assert!(object.touch(exclusive(4)).await.unwrap().is_accepted());
    assert_ne!(bytes().await, before);
    let tag = async || store.head(&path()).await.unwrap().e_tag;
    let touched = tag().await;
    assert!(object.touch(exclusive(4)).await.unwrap().is_accepted());
    assert_eq!(tag().await, touched, "one that has nothing to raise writes nothing");
}

#[tokio::test]
async fn an_operator_frees_an_object_that_was_shown_a_timestamp() {
    let (_, object) = made().await;
    assert_eq!(write(&object, 1_790_000_000_000, "150").await, Admission::Accepted(()));
    assert!(!write(&object, 6, "130").await.is_accepted());
    assert!(matches!(object.reset(Token(u64::MAX)).await, Err(ObjectError::Fence(_))));
    object.reset(Token(6)).await.unwrap();
    assert_eq!(object.read().await.unwrap(), contents(6, "150"));
    assert_eq!(write(&object, 5, "130").await, Admission::Stale { high: Token(6) });
    assert_eq!(write(&object, 6, "130").await, Admission::Accepted(()));
}

#[tokio::test]
async fn a_missing_or_foreign_object_accepts_nobody() {
    let (store, object) = made().await;
    let again = GuardedObject::create(store.clone(), path(), b"1").await;
    assert!(matches!(again, Err(ObjectError::Store(object_store::Error::AlreadyExists { .. }))));
    for foreign in
        ["", "130", "ringfence-guard 1 \n130", "ringfence-guard 1 x\n130", "ringfence-guard 2 4\n130"]
    {
        store.put(&path(), foreign.into()).await.unwrap();
        assert!(matches!(object.touch(exclusive(9)).await, Err(ObjectError::NotGuarded(_))), "{foreign:?}");
    }
    store.delete(&path()).await.unwrap();
    let missing = object.write(exclusive(9), b"x").await;
    assert!(matches!(missing, Err(ObjectError::Store(object_store::Error::NotFound { .. }))));
}

#[tokio::test]
async fn a_store_without_conditional_puts_is_refused_and_left_empty() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
    let refused = GuardedObject::create(store.clone(), path(), b"100").await;
    assert!(matches!(refused, Err(ObjectError::Store(object_store::Error::NotImplemented { .. }))));
    assert!(matches!(store.head(&path()).await, Err(object_store::Error::NotFound { .. })));
}

/// Such a store was once accepted, and every stale write landed.
#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused_and_left_empty() {
    for (ignores_create, ignores_update) in [(true, false), (false, true), (true, true)] {
        let store = Arc::new(Careless { store: InMemory::new(), ignores_create, ignores_update });
        let refused = GuardedObject::create(store.clone(), path(), b"100").await;
        assert!(matches!(refused, Err(ObjectError::Unconditional(_))), "{refused:?}");
        assert!(matches!(store.head(&path()).await, Err(object_store::Error::NotFound { .. })));
        store.put(&path(), "not ours".into()).await.unwrap();
        let exists = GuardedObject::create(store.clone(), path(), b"100").await;
        assert!(matches!(exists, Err(ObjectError::Store(object_store::Error::AlreadyExists { .. }))));
        assert_eq!(&store.get(&path()).await.unwrap().bytes().await.unwrap()[..], b"not ours");
    }
    let good = Arc::new(Careless { store: InMemory::new(), ignores_create: false, ignores_update: false });
    assert_eq!(
        write(&GuardedObject::create(good, path(), b"100").await.unwrap(), 2, "150").await,
        Admission::Accepted(())
    );
}

/// A store that ignores conditions, as some S3-compatible ones do.
#[derive(Debug)]
struct Careless {
    store: InMemory,
    ignores_create: bool,
    ignores_update: bool,
}

impl fmt::Display for Careless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Careless")
    }
}

#[async_trait]
impl ObjectStore for Careless {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let ignored = match options.mode {
            PutMode::Create => self.ignores_create,
            PutMode::Update(_) => self.ignores_update,
            PutMode::Overwrite => false,
        };
        if ignored {
            options.mode = PutMode::Overwrite;
        }
        self.store.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
