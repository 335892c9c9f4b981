//! A real browser: the system's Chromium, without a window, driven over its DevTools protocol.
//!
//! `--remote-debugging-pipe` makes it read commands from descriptor 3 and write answers and events to 4, as JSON values that
//! each end with a NUL. A shell opens two named pipes there. We hold both ends of each, so opening never blocks, and a
//! browser that died shows as a timeout.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Error;
use crate::process::{Process, WITHIN, folder, mortal};

/// The program, and the system's package.
const PROGRAM: &str = "chromium";
/// The pause between two looks at the page.
const AGAIN: Duration = Duration::from_millis(30);
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    // Those of tests are signed by authorities of their own.
    "--ignore-certificate-errors",
];

/// A browser with one page. It ends when it is dropped. All but its start panics if the browser fails.
#[derive(Debug)]
pub struct Browser {
    commands: pipe::Sender,
    answers: BufReader<pipe::Receiver>,
    session: Option<String>,
    last: u64,
    requests: Vec<String>,
    complaints: Vec<String>,
    process: Process,
    dir: TempDir,
}

impl Browser {
    /// Whether the browser is installed; prints if not. A test that needs it returns then.
    pub fn is_installed() -> bool {
        let places = std::env::var_os("PATH").unwrap_or_default();
        let is = std::env::split_paths(&places).any(|place| place.join(PROGRAM).exists());
        if !is {
            eprintln!("skipped: {PROGRAM} is not installed");
        }
        is
    }

    /// Starts it, with an empty page and an empty profile.
    pub async fn start() -> Result<Self, Error> {
        let dir = folder("browser")?;
        let (to, from) = (dir.path().join("to"), dir.path().join("from"));
        make_pipe(&to)?;
        make_pipe(&from)?;
        let cannot_open = || Error::io("cannot open a pipe to the browser");
        let commands = pipe::OpenOptions::new().read_write(true).open_sender(&to).map_err(cannot_open())?;
        let answers = pipe::OpenOptions::new().read_write(true).open_receiver(&from).map_err(cannot_open())?;
        let mut command = mortal("sh");
        command
            .args(["-c", r#"to=$1 from=$2; shift 2; exec "$@" 3<"$to" 4>"$from""#, "sh"])
            .arg(to)
            .arg(from);
        // Its processes are a group of their own, and leave nothing elsewhere.
        command.process_group(0).env("TMPDIR", dir.path());
        command.arg(PROGRAM).args(ARGUMENTS).arg(format!("--user-data-dir={}", dir.path().display()));
        let process = Process::start(command, &dir.path().join("log"));
        let mut browser = Self {
            commands,
            answers: BufReader::new(answers),
            session: None,
            last: 0,
            requests: Vec::new(),
            complaints: Vec::new(),
            process: process.map_err(Error::io("cannot start the browser"))?,
            dir,
        };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" })).await?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.command("Target.attachToTarget", attach).await?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Performance"] {
            browser.command(&format!("{domain}.enable"), json!({})).await?;
        }
        browser.resize(1280, 800).await;
        Ok(browser)
    }

    /// Resizes the page, in pixels.
    pub async fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.does("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Navigates to `url`.
    pub async fn open(&mut self, url: &str) {
        let answer = self.does("Page.navigate", json!({ "url": url })).await;
        assert_eq!(answer.get("errorText"), None, "{url}");
    }

    /// Evaluates a JavaScript expression in the page, which must not throw; a promise is awaited.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.does("Runtime.evaluate", parameters).await;
        assert_eq!(answer.get("exceptionDetails"), None, "{expression}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page. If it never is, it panics with the text of the page.
    pub async fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + WITHIN;
        // A page that is still loading may lack anything.
        let look = format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
        while self.evaluate(&look).await != true {
            if Instant::now() > deadline {
                let text = self.evaluate("document.body.innerText").await;
                panic!("not {expression}; complaints: {:?}; the page says:\n{text}", self.complaints);
            }
            sleep(AGAIN).await;
        }
    }

    /// Presses a key, as `j`, `Enter` or `ArrowDown`.
    pub async fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.does("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types into the element with the focus.
    pub async fn write(&mut self, text: &str) {
        self.does("Input.insertText", json!({ "text": text })).await;
    }

    /// The memory of the page's objects after a garbage collection.
    pub async fn heap_bytes(&mut self) -> u64 {
        self.does("HeapProfiler.collectGarbage", json!({})).await;
        let answer = self.does("Performance.getMetrics", json!({})).await;
        let mut metrics = answer["metrics"].as_array().into_iter().flatten();
        let used = metrics.find(|metric| metric["name"] == "JSHeapUsedSize");
        let bytes = used.and_then(|metric| metric["value"].as_f64());
        bytes.unwrap_or_else(|| panic!("no size of the heap: {answer}")) as u64
    }

    /// The URLs requested so far.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// The complaints so far: exceptions, console output, policy violations, resources that failed to load, dialogs that
    /// scripts opened.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    async fn does(&mut self, method: &str, params: Value) -> Value {
        self.command(method, params).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn command(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        let deadline = Instant::now() + WITHIN;
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let bytes = [command.to_string().as_bytes(), b"\0"].concat();
        let exchange = async {
            self.commands.write_all(&bytes).await.map_err(Error::io("cannot write to the browser"))?;
            loop {
                let mut message = Vec::new();
                let read = self.answers.read_until(0, &mut message).await;
                read.map_err(Error::io("cannot read from the browser"))?;
                message.pop();
                let message: Value = serde_json::from_slice(&message)
                    .map_err(|error| failed(format!("the browser says no JSON: {error}")))?;
                if message["id"] != self.last {
                    note(&mut self.requests, &mut self.complaints, &message);
                } else if let Some(error) = message.get("error") {
                    return Err(failed(format!("{method}: {error}")));
                } else {
                    return Ok(message["result"].clone());
                }
            }
        };
        timeout_at(deadline, exchange).await.unwrap_or_else(|_| {
            Err(Error::Timeout { what: format!("the browser answers {method}"), within: WITHIN })
        })
    }
}

/// Records an event.
fn note(requests: &mut Vec<String>, complaints: &mut Vec<String>, event: &Value) {
    let params = &event["params"];
    match event["method"].as_str().unwrap_or_default() {
        "Network.requestWillBeSent" => {
            requests.extend(params["request"]["url"].as_str().map(str::to_owned));
        }
        "Runtime.exceptionThrown" => complaints.push(params["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" => complaints.push(params["args"].to_string()),
        "Log.entryAdded" => {
            let entry = &params["entry"];
            complaints.push(format!("{}: {} {}", entry["source"], entry["text"], entry["url"]));
        }
        "Page.javascriptDialogOpening" => complaints.push(params["message"].to_string()),
        _ => {}
    }
}

/// Ends all of its processes before the profile is removed: those that have outlived the first would still write to it.
impl Drop for Browser {
    fn drop(&mut self) {
        // They may have ended.
        let _ = self.process.kill_group();
        // What they were about to create may appear meanwhile.
        for _ in 0..1_000 {
            match std::fs::remove_dir_all(self.dir.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => std::thread::sleep(AGAIN / 3),
                _ => return,
            }
        }
    }
}

fn make_pipe(at: &Path) -> Result<(), Error> {
    let made = mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    made.map_err(|error| Error::io("cannot make a pipe")(error.into()))
}

fn failed(why: String) -> Error {
    Error::Failed(format!("the browser failed: {why}"))
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::path::PathBuf;

    use super::*;

    /// The programs whose command line names `dir`.
    fn of(dir: &Path) -> Vec<PathBuf> {
        let names_it = |process: &PathBuf| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&*dir.to_string_lossy())
        };
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.filter(names_it).collect()
    }

    /// A profile once came back after it was removed, and each browser left a directory beside it.
    #[tokio::test]
    async fn a_browser_leaves_nothing_behind() {
        if !Browser::is_installed() {
            return;
        }
        let mut browser = Browser::start().await.unwrap();
        browser.open("about:blank").await;
        let dir = browser.dir.path().to_owned();
        assert!(of(&dir).len() > 1, "it has processes: {:?}", of(&dir));
        let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let is_socket = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("org.chromium");
        assert!(entries.collect::<Vec<_>>().iter().any(is_socket), "its sockets are there");
        // One that does not end with the first.
        let mut command = mortal("sh");
        command.args(["-c", r#"while :; do echo >"$1/late"; sleep 0.01; done"#, "sh"]).arg(&dir);
        command.process_group(i32::try_from(browser.process.id()).unwrap());
        let mut late = Process::start(command, &dir.join("log")).unwrap();
        drop(browser);
        let have_ended = || ready((late.ended().unwrap().is_some() && of(&dir).is_empty()).then_some(()));
        crate::until(WITHIN, "they end", have_ended).await.unwrap();
        assert!(!dir.exists());
    }
}
