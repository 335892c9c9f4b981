//! Plays the part of the Rust client in the conformance suite: requests and answers are lines of JSON, as PROTOCOL.md says.
//!
//! All runs on one thread, as in the asynchronous clients of other languages: code that blocks it blocks the renewals.

mod under;
mod words;

use std::collections::HashMap;
use std::io::{BufRead, Write, stdin, stdout};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_client::wire::{EndReason, Mode};
use ringfence_client::{
    Client, Credential, Error, Key, Lease, LeaseId, Lock, Loss, State, Tls, WantedKey, test_util,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::words::{described, word};

/// All but three. `interrupt`: nothing interrupts a thread; a future that is awaited is dropped instead. `fork`: no runtime survives one,
/// so no child can look at a lease. `leaked`: in Rust, dropping a lease is the way to release it, and no fault.
///
/// Some of it is the language's. What bounds a call is a `timeout` around it, which drops the future (`deadline`). A lease is left by
/// whoever it was moved to (`leave`). A callback is a task that awaits the loss (`on_lost`), or a thread, if it blocks (`on_lost_block`).
const ABILITIES: &[&str] = &[
    "cancel",
    "using",
    "shared",
    "block",
    "tls",
    "credential",
    "adopt",
    "headers",
    "hold_at_least",
    "max_hold",
    "clock",
    "deadline",
    "leave",
    "drop",
    "exit",
    "on_lost",
    "on_lost_block",
    "lead",
    "close",
    "resources",
];

/// What `close` is told by programs that have no wish of their own.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// A request. Each operation has fields of its own.
#[derive(Debug, Deserialize)]
struct Request {
    id: u64,
    op: String,
    #[serde(flatten)]
    fields: Value,
}

/// The clients and leases, by name.
#[derive(Default)]
struct Adapter {
    clients: Mutex<HashMap<String, Client>>,
    leases: Mutex<HashMap<String, Kept>>,
    pending: Mutex<HashMap<u64, AbortHandle>>,
}

/// A lease that was granted.
#[derive(Clone)]
struct Kept {
    client: Client,
    lease_id: LeaseId,
    /// Until it is released.
    lease: Option<Arc<Lease>>,
    /// Tells the runner of its loss.
    tells: AbortHandle,
    /// How it stood when it was.
    ended: (&'static str, Option<&'static str>),
}

/// Why a request failed.
enum Failure {
    Client(Error),
    /// It took too long.
    Deadline,
    /// The error of the body of `using`.
    Body,
    /// A fault of the runner, or of this program.
    Internal(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

type Answer = Result<Value, Failure>;

fn main() -> std::io::Result<()> {
    let (sender, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let adapter = Arc::new(Adapter::default());
        while let Some(line) = lines.recv().await {
            match serde_json::from_str::<Request>(&line) {
                Ok(request) if request.op == "exit" => break,
                Ok(request) => adapter.begin(request),
                Err(error) => say(&json!({"error": {"kind": "Internal", "message": error.to_string()}})),
            }
        }
    });
    Ok(())
}

impl Adapter {
    fn begin(self: &Arc<Self>, request: Request) {
        let Request { id, op, fields } = request;
        if op == "many" {
            for request in fields["requests"].as_array().into_iter().flatten() {
                match Request::deserialize(request) {
                    Ok(request) => self.begin(request),
                    Err(error) => {
                        say(&json!({"id": id, "error": {"kind": "Internal", "message": error.to_string()}}))
                    }
                }
            }
            return say(&json!({"id": id, "ok": {}}));
        }
        let adapter = Arc::clone(self);
        let doing = tokio::spawn(async move { adapter.run(&op, &fields).await });
        locked(&self.pending).insert(id, doing.abort_handle());
        let adapter = Arc::clone(self);
        tokio::spawn(async move {
            let done = doing.await;
            locked(&adapter.pending).remove(&id);
            match done {
                Ok(Ok(ok)) => say(&json!({"id": id, "ok": ok})),
                Ok(Err(failure)) => say(&json!({"id": id, "error": described(&failure)})),
                Err(error) if error.is_cancelled() => {
                    say(&json!({"id": id, "error": {"kind": "Cancelled", "message": "cancelled"}}));
                }
                Err(error) => {
                    say(&json!({"id": id, "error": {"kind": "Internal", "message": error.to_string()}}))
                }
            }
        });
    }

    async fn run(self: &Arc<Self>, op: &str, fields: &Value) -> Answer {
        match op {
            "hello" => Ok(json!({"sdk": "rust", "abilities": ABILITIES})),
            "open" => self.open(fields),
            "acquire" | "try" | "enter" => self.acquire(op, fields).await,
            "adopt" => self.adopt(fields).await,
            "using" => self.using(fields).await,
            "leave" => self.leave(fields).await,
            "drop" => self.forget(fields),
            "lead" => self.lead(fields).await,
            "cancel" => {
                let target = fields["target"].as_u64().and_then(|id| locked(&self.pending).remove(&id));
                target.ok_or_else(|| internal("there is no such request"))?.abort();
                Ok(json!({}))
            }
            "renew" => {
                let lease = self.held(fields)?;
                within(fields, lease.renew()).await?;
                Ok(json!({}))
            }
            "release" => within(fields, self.release(fields)).await,
            "state" => self.state(fields),
            "headers" => {
                let headers = self.held(fields)?.headers(text(fields, "key")?)?;
                Ok(json!({"headers": headers.into_iter().collect::<HashMap<_, _>>()}))
            }
            "fence" => Ok(json!({"fence": self.held(fields)?.fence(text(fields, "key")?)})),
            "block" => {
                std::thread::sleep(duration(fields, "ms").unwrap_or_default());
                Ok(json!({}))
            }
            "clock" => {
                let by =
                    |clock: &str| duration(fields, "advance_ms").or(duration(&fields["advance_ms"], clock));
                test_util::advance(by("boot").unwrap_or_default(), by("raw").unwrap_or_default());
                Ok(json!({}))
            }
            "close" => {
                let client = self.client(fields)?;
                let left = client.close(duration(fields, "within_ms").unwrap_or(CLOSES_WITHIN)).await;
                Ok(json!({"left": left}))
            }
            "resources" => resources(),
            _ => Err(internal(&format!("there is no operation {op}"))),
        }
    }

    fn open(&self, fields: &Value) -> Answer {
        let path = |name: &str| fields[name].as_str().map(Into::into);
        let credential = fields["credential"].as_str().map(Credential::new).transpose()?;
        let tls = Tls { authority: path("ca"), certificate: path("cert"), key: path("key"), credential };
        let urls = fields["urls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let client = Client::connect_with(urls.iter().filter_map(Value::as_str), &tls)?;
        locked(&self.clients).insert(text(fields, "client")?.to_owned(), client);
        Ok(json!({}))
    }

    async fn acquire(self: &Arc<Self>, op: &str, fields: &Value) -> Answer {
        let (client, lock) = self.lock(fields)?;
        let lock = if op == "try" { lock.wait(Duration::ZERO) } else { lock };
        let lease = within(fields, lock.acquire()).await?;
        self.keep(fields, client, lease)
    }

    async fn adopt(self: &Arc<Self>, fields: &Value) -> Answer {
        let client = self.client(fields)?;
        let lease_id = text(fields, "lease_id")?.parse().map_err(|_| internal("lease_id is no UUID"))?;
        let lease = client.adopt(lease_id).await?;
        self.keep(fields, client, lease)
    }

    async fn release(&self, fields: &Value) -> Answer {
        let name = text(fields, "lease")?;
        let mut kept = self.kept(fields)?;
        let Some(lease) = kept.lease.take() else {
            // The handle is gone. What is left is the id.
            kept.client.release(kept.lease_id).await?;
            return Ok(json!({}));
        };
        if let Some(entry) = locked(&self.leases).get_mut(name) {
            entry.lease = None;
            entry.ended = match lease.state() {
                State::Lost(loss) => ("lost", Some(word(loss))),
                State::Held | State::Unknown => ("released", Some("released")),
            };
        }
        let lease = Arc::into_inner(lease).ok_or_else(|| internal("another call uses the lease"))?;
        lease.release().await?;
        Ok(json!({}))
    }

    fn state(&self, fields: &Value) -> Answer {
        let kept = self.kept(fields)?;
        let (state, reason) = match kept.lease.as_ref().map(|lease| lease.state()) {
            Some(State::Held) => ("held", None),
            Some(State::Unknown) => ("unsure", None),
            Some(State::Lost(loss)) => ("lost", Some(word(loss))),
            None => kept.ended,
        };
        let remaining = kept.lease.as_ref().map(|lease| lease.remaining()).unwrap_or_default();
        Ok(json!({"state": state, "remaining_ms": remaining.as_millis() as u64, "reason": reason}))
    }

    /// Keeps a new lease, and answers what the runner wants to know of it.
    fn keep(&self, fields: &Value, client: Client, lease: Lease) -> Answer {
        let name = text(fields, "lease")?.to_owned();
        let (lost, told) = (lease.lost(), name.clone());
        let telling = tokio::spawn(async move {
            let reason = word(lost.await);
            say(&json!({"event": "lost", "lease": told, "reason": reason}));
        });
        under::call_back(&lease, fields["on_lost"].as_str());
        let fences: HashMap<String, Option<u64>> = lease
            .keys()
            .iter()
            .map(|key| (key.to_string(), lease.fence(key.as_str()).map(|fence| fence.0)))
            .collect();
        let state = if lease.state() == State::Held { "held" } else { "unsure" };
        let granted = json!({"lease_id": lease.lease_id().to_string(), "token": lease.token().0, "fences": fences, "state": state});
        let lease_id = lease.lease_id();
        let kept = Kept {
            client,
            lease_id,
            lease: Some(Arc::new(lease)),
            tells: telling.abort_handle(),
            ended: ("released", None),
        };
        locked(&self.leases).insert(name, kept);
        Ok(granted)
    }

    fn lock(&self, fields: &Value) -> Result<(Client, Lock), Failure> {
        let client = self.client(fields)?;
        let mut lock = client.lock_all(Vec::<String>::new());
        for wanted in fields["keys"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let Some(object) = wanted.as_object() else {
                lock = lock.and(wanted.as_str().unwrap_or_default());
                continue;
            };
            let limit =
                object.get("limit").and_then(Value::as_u64).and_then(|limit| u32::try_from(limit).ok());
            let key = Key::new(text(wanted, "key")?).map_err(|error| internal(&error.to_string()))?;
            let mode = Mode::Shared { limit: limit.and_then(NonZeroU32::new) };
            lock = lock.and_wanted(WantedKey { key, mode });
        }
        if let Some(ttl) = duration(fields, "ttl_ms") {
            lock = lock.ttl(ttl);
        }
        if let Some(wait) = duration(fields, "wait_ms") {
            lock = lock.wait(wait);
        }
        if let Some(max_hold) = duration(fields, "max_hold_ms") {
            lock = lock.max_hold(max_hold);
        }
        if let Some(least) = duration(fields, "hold_at_least_ms") {
            lock = lock.hold_at_least(least);
        }
        if let Some(holder) = fields["holder"].as_str() {
            lock = lock.holder(holder);
        }
        for (name, value) in fields["metadata"].as_object().into_iter().flatten() {
            lock = lock.metadata(name, value.as_str().unwrap_or_default());
        }
        Ok((client, lock))
    }

    fn client(&self, fields: &Value) -> Result<Client, Failure> {
        let client = locked(&self.clients).get(text(fields, "client")?).cloned();
        client.ok_or_else(|| internal("there is no such client"))
    }

    fn kept(&self, fields: &Value) -> Result<Kept, Failure> {
        let kept = locked(&self.leases).get(text(fields, "lease")?).cloned();
        kept.ok_or_else(|| internal("there is no such lease"))
    }

    fn held(&self, fields: &Value) -> Result<Arc<Lease>, Failure> {
        self.kept(fields)?.lease.ok_or(Failure::Client(Error::Lost(Loss::Ended(EndReason::Released))))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds this lock")
}

fn text<'a>(fields: &'a Value, name: &str) -> Result<&'a str, Failure> {
    fields[name].as_str().ok_or_else(|| internal(&format!("{name}: is missing, or no text")))
}

fn duration(fields: &Value, name: &str) -> Option<Duration> {
    fields[name].as_u64().map(Duration::from_millis)
}

/// The result of a call that may take as long as the runner says. If it takes longer, its future is dropped.
async fn within<T, E: Into<Failure>>(
    fields: &Value,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match duration(fields, "deadline_ms") {
        Some(deadline) => timeout(deadline, call).await.map_err(|_| Failure::Deadline)?.map_err(Into::into),
        None => call.await.map_err(Into::into),
    }
}

/// What this process has.
fn resources() -> Answer {
    let count = |folder: &str| {
        let entries = std::fs::read_dir(folder).map(Iterator::count);
        entries.map_err(|error| internal(&format!("{folder}: {error}")))
    };
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (threads, descriptors) = (count("/proc/self/task")?, count("/proc/self/fd")?);
    Ok(json!({"threads": threads, "tasks": tasks, "descriptors": descriptors}))
}

fn internal(why: &str) -> Failure {
    Failure::Internal(why.to_owned())
}

/// One line of JSON.
fn say(line: &Value) {
    let mut out = stdout().lock();
    // Without the runner there is nobody to tell.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
