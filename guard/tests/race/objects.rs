use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use ringfence_guard::objects::GuardedObject;
use ringfence_guard::{Admission, Claim};
use tokio::runtime::Runtime;

use crate::race::race;
use crate::resource::Resource;

/// An object in the in-memory store, which has conditional puts as S3 does.
struct Guarded {
    runtime: Runtime,
    object: GuardedObject,
}

impl Resource for Guarded {
    fn touch(&self, claim: Claim) -> Admission {
        self.runtime.block_on(self.object.touch(claim)).unwrap()
    }

    fn read(&self) -> u64 {
        number(&self.runtime.block_on(self.object.read()).unwrap().data)
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.runtime.block_on(self.object.write(claim, number.to_string().as_bytes())).unwrap()
    }
}

/// The same store, with unconditional puts.
struct Plain {
    runtime: Runtime,
    store: InMemory,
}

impl Resource for Plain {
    fn touch(&self, _: Claim) -> Admission {
        Admission::Accepted(())
    }

    fn read(&self) -> u64 {
        let read = async { self.store.get(&path()).await.unwrap().bytes().await.unwrap() };
        number(&self.runtime.block_on(read))
    }

    fn write(&self, _: Claim, number: u64) -> Admission {
        self.runtime.block_on(self.store.put(&path(), number.to_string().into())).unwrap();
        Admission::Accepted(())
    }
}

fn path() -> Path {
    Path::from("number")
}

fn number(data: &[u8]) -> u64 {
    str::from_utf8(data).unwrap().parse().unwrap()
}

#[test]
fn an_object_rejects_late_holders_and_nobody_else() {
    let runtime = Runtime::new().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let object = runtime.block_on(GuardedObject::create(store, path(), b"0")).unwrap();
    race(&Guarded { runtime, object }).assert_right();
}

#[test]
fn an_object_without_a_guard_loses_updates() {
    let plain = Plain { runtime: Runtime::new().unwrap(), store: InMemory::new() };
    plain.runtime.block_on(plain.store.put(&path(), "0".into())).unwrap();
    race(&plain).assert_wrong();
}
