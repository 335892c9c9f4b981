//! The adapter of a client library: a child process that speaks lines of JSON.

use std::collections::{HashMap, HashSet};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bounds an answer that has to come. The longest that a client may take is 30 s, for a release in the background.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(45);
/// Bounds the start of an adapter, until it answers for the first time.
pub const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// How much of what an adapter logs is kept.
const MAX_LOGGED: usize = 64 << 10;
/// The longest line that an adapter may write: an answer with the fences of a lease is far shorter.
const MAX_LINE: u64 = 1 << 20;

/// What the runtime of a language writes if something went wrong that no caller was told.
const ALARMS: &[&str] = &[
    "Traceback",
    "never retrieved",
    "Task was destroyed",
    "ResourceWarning",
    "Exception in thread",
    "Exception ignored",
    "Unhandled",
    "unhandled",
    "MaxListenersExceededWarning",
    "panicked",
    "panic:",
    "fatal error:",
    "DATA RACE",
];

/// How to start one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The program and its arguments.
    pub words: Vec<String>,
}

impl Recipe {
    /// Splits a command at spaces: nothing is quoted in it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        anyhow::ensure!(!words.is_empty(), "--adapter: a command is expected");
        Ok(Self { words })
    }
}

/// What an adapter answers: the `ok`, or the error.
pub type Answer = Result<Value, Refusal>;

/// An error that an adapter reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// As PROTOCOL.md lists them.
    pub kind: String,
    /// All of it.
    pub whole: Value,
}

impl Refusal {
    /// Whether this says that the thread of the request was interrupted.
    pub fn is_interrupt(&self) -> bool {
        self.kind == "Interrupted" || self.whole["interrupted"] == true
    }
}

/// Whether the answer says, by its error or beside its result, that the thread was interrupted.
pub fn interrupted(answer: &Answer) -> bool {
    match answer {
        Ok(ok) => ok["interrupted"] == true,
        Err(refusal) => refusal.is_interrupt(),
    }
}

/// A running adapter. It is killed when this is dropped.
pub struct Adapter {
    child: Child,
    stdin: ChildStdin,
    next_id: u64,
    inner: Arc<Inner>,
    readers: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Inner {
    said: Mutex<Said>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Said {
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// The losses that it told, with their leases, in order.
    lost: Vec<(String, Option<String>)>,
    /// The leaders that it told of, with their leases and tokens, in order.
    led: Vec<(String, u64)>,
    /// What the library said of handles that were dropped.
    leaked: Vec<String>,
    /// The requests whose threads were to be interrupted.
    interrupted: HashSet<u64>,
    violations: Vec<String>,
    logged: String,
    /// It has closed its output.
    is_over: bool,
}

/// A request whose answer may be waited for.
pub struct Call {
    /// Its id, for `cancel`.
    pub id: u64,
    answer: oneshot::Receiver<Answer>,
    op: String,
}

impl Call {
    /// The answer, which has to come.
    pub async fn answer(self) -> anyhow::Result<Answer> {
        self.answer_within(ANSWERS_WITHIN).await
    }

    /// The answer, which has to come within this time.
    pub async fn answer_within(self, time: Duration) -> anyhow::Result<Answer> {
        match timeout(time, self.answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => bail!("the adapter ended without an answer to `{}`", self.op),
            Err(_) => bail!("the adapter has not answered `{}` within {time:?}", self.op),
        }
    }
}

impl Adapter {
    /// Starts it.
    pub fn start(recipe: &Recipe) -> anyhow::Result<Self> {
        let [program, arguments @ ..] = &recipe.words[..] else { bail!("no program is named") };
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let inner = Arc::new(Inner::default());
        let stdin = child.stdin.take().context("it has no input")?;
        let stdout = child.stdout.take().context("it has no output")?;
        let stderr = child.stderr.take().context("it has no error output")?;
        let lines = tokio::spawn(hear(Arc::clone(&inner), stdout));
        let logs = tokio::spawn(note(Arc::clone(&inner), stderr));
        Ok(Self { child, stdin, next_id: 1, inner, readers: [lines, logs] })
    }

    /// Sends a request. Answers come in any order.
    pub async fn begin(&mut self, op: &str, fields: &Value) -> anyhow::Result<Call> {
        let (line, call) = self.prepare(op, fields);
        self.send(line).await?;
        Ok(call)
    }

    /// Sends requests that begin together, and have an answer each.
    pub async fn begin_many(&mut self, op: &str, many: &[Value]) -> anyhow::Result<Vec<Call>> {
        let (requests, calls): (Vec<_>, Vec<_>) = many.iter().map(|fields| self.prepare(op, fields)).unzip();
        let begun = self.begin("many", &json!({"requests": requests})).await?;
        begun.answer().await?.map_err(|refusal| anyhow!("`many` failed: {}", refusal.whole))?;
        Ok(calls)
    }

    /// Interrupts the thread of a request that is pending.
    pub async fn interrupt(&mut self, id: u64) -> anyhow::Result<()> {
        self.inner.said().interrupted.insert(id);
        let done = self.begin("interrupt", &json!({"target": id})).await?.answer().await?;
        done.map(drop).map_err(|refusal| anyhow!("`interrupt` failed: {}", refusal.whole))
    }

    fn prepare(&mut self, op: &str, fields: &Value) -> (Value, Call) {
        let (sender, answer) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        let mut request = fields.as_object().cloned().unwrap_or_default();
        request.insert("id".to_owned(), id.into());
        request.insert("op".to_owned(), op.into());
        self.inner.said().waiting.insert(id, sender);
        (Value::Object(request), Call { id, answer, op: op.to_owned() })
    }

    async fn send(&mut self, request: Value) -> anyhow::Result<()> {
        let line = format!("{request}\n");
        let written = timeout(ANSWERS_WITHIN, self.stdin.write_all(line.as_bytes())).await;
        written.map_err(|_| anyhow!("the adapter reads no requests"))?.context("the adapter has ended")
    }

    /// The reasons of the losses of this lease that it told.
    pub fn losses(&self, lease: &str) -> Vec<Option<String>> {
        let said = self.inner.said();
        said.lost.iter().filter(|(name, _)| name == lease).map(|(_, reason)| reason.clone()).collect()
    }

    /// Waits until it tells that this lease is lost. Returns the reason.
    pub async fn lost(&self, lease: &str, within: Duration) -> anyhow::Result<String> {
        let seeing = self.until(|said| said.lost.iter().find(|(name, _)| name == lease).cloned());
        let seen = timeout(within, seeing).await;
        let (_, reason) = seen.map_err(|_| anyhow!("the loss of {lease} was not told within {within:?}"))?;
        Ok(reason.unwrap_or_default())
    }

    /// Waits until the work of `lead` has begun with this lease so often. Returns the latest token.
    pub async fn leads(&self, lease: &str, times: usize, within: Duration) -> anyhow::Result<u64> {
        let seeing = self.until(|said| {
            let tokens: Vec<u64> =
                said.led.iter().filter(|(name, _)| name == lease).map(|(_, token)| *token).collect();
            (tokens.len() >= times).then(|| tokens.last().copied()).flatten()
        });
        timeout(within, seeing)
            .await
            .map_err(|_| anyhow!("{lease} has not led for the {times}. time within {within:?}"))
    }

    /// Waits until the library reports a handle that was dropped. Returns what it says.
    pub async fn leaked(&self, within: Duration) -> anyhow::Result<String> {
        let seeing = self.until(|said| said.leaked.first().cloned());
        timeout(within, seeing).await.map_err(|_| anyhow!("no dropped handle was reported within {within:?}"))
    }

    /// Waits until what it said has what `look` looks for. For ever, if the adapter has ended.
    async fn until<T>(&self, look: impl Fn(&Said) -> Option<T>) -> T {
        let mut changed = self.inner.changed.subscribe();
        loop {
            if let Some(found) = look(&self.inner.said()) {
                return found;
            }
            if self.inner.said().is_over || changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// What no adapter may do: a line that is none of the protocol, an internal error, two losses of one lease.
    pub fn violations(&self) -> Vec<String> {
        let said = self.inner.said();
        let mut found = said.violations.clone();
        let mut told: Vec<&str> = said.lost.iter().map(|(lease, _)| lease.as_str()).collect();
        told.sort_unstable();
        let twice = told.windows(2).filter(|two| two[0] == two[1]);
        found.extend(twice.map(|two| format!("the loss of {} was told twice", two[0])));
        let alarm = said.logged.lines().find(|line| ALARMS.iter().any(|alarm| line.contains(alarm)));
        found.extend(alarm.map(|line| format!("it logged: {line}")));
        found
    }

    /// The end of what it logged.
    pub fn logged(&self) -> String {
        self.inner.said().logged.clone()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(pid.context("the adapter has ended")?, signal).context("cannot signal the adapter")
    }

    /// Has it end, and waits for that.
    pub async fn exit(&mut self) -> anyhow::Result<ExitStatus> {
        drop(self.begin("exit", &Value::Object(Map::new())).await?);
        timeout(ANSWERS_WITHIN, self.child.wait())
            .await
            .context("the adapter does not end")?
            .context("it has no end")
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.readers.iter().for_each(JoinHandle::abort);
    }
}

impl Inner {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().expect("no code panics while it holds this lock")
    }

    fn hear(&self, line: &str) -> Option<()> {
        let line: Value = serde_json::from_str(line).ok()?;
        let mut said = self.said();
        if let Some(event) = line["event"].as_str() {
            let lease = line["lease"].as_str().map(str::to_owned);
            match event {
                "lost" => said.lost.push((lease?, line["reason"].as_str().map(str::to_owned))),
                "leads" => said.led.push((lease?, line["token"].as_u64()?)),
                "leaked" => said.leaked.push(line["message"].as_str()?.to_owned()),
                _ => return None,
            }
            return Some(());
        }
        let id = line["id"].as_u64()?;
        let waiting = said.waiting.remove(&id)?;
        let answer = match (line.get("ok"), line.get("error")) {
            (Some(ok), None) => Ok(ok.clone()),
            (None, Some(error)) => {
                let kind = error["kind"].as_str()?.to_owned();
                if kind == "Internal" {
                    said.violations.push(format!("an internal error: {}", error["message"]));
                }
                Err(Refusal { kind, whole: error.clone() })
            }
            _ => return None,
        };
        if interrupted(&answer) && !said.interrupted.contains(&id) {
            said.violations.push(format!("an interrupt has met another request than it was for: {answer:?}"));
        }
        // The scenario may be over.
        let _ = waiting.send(answer);
        Some(())
    }
}

async fn hear(inner: Arc<Inner>, stdout: impl AsyncRead + Unpin) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(length) if length > 0) {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if inner.hear(&text).is_none() {
            inner.said().violations.push(format!("a line that is none of the protocol: {}", text.trim_end()));
        }
        inner.changed.send_replace(());
    }
    let mut said = inner.said();
    said.is_over = true;
    said.waiting.clear();
    drop(said);
    inner.changed.send_replace(());
}

async fn note(inner: Arc<Inner>, mut stderr: impl AsyncRead + Unpin) {
    let mut bytes = vec![0; 4 << 10];
    while let Ok(length @ 1..) = stderr.read(&mut bytes).await {
        let mut said = inner.said();
        if said.logged.len() < MAX_LOGGED {
            said.logged += &String::from_utf8_lossy(&bytes[..length]);
        }
    }
}
