//! What the demo prints, for a terminal of 80 columns: events with their time, tokens in a column of their own.
//!
//! Colours only where standard output is a terminal and `NO_COLOR` does not forbid them.

use std::io::{IsTerminal, Result, Write};
use std::time::Instant;

use clap::builder::styling::{AnsiColor, Style};

/// Where an event's text begins, and how wide it is where a token follows.
const INDENT: usize = 10;
const TEXT: usize = 52;
/// How wide the left of two columns is.
const LEFT: usize = 34;

/// What a text is painted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As any other.
    Plain,
    /// It is as it should be.
    Good,
    /// It is not.
    Bad,
    /// It is to be seen first.
    Strong,
}

/// Standard output.
pub(crate) struct Screen {
    has_colours: bool,
    began: Instant,
}

impl Screen {
    /// Time is counted from now.
    pub(crate) fn new() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { has_colours: std::io::stdout().is_terminal() && !no_color, began: Instant::now() }
    }

    /// How long it has been there, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A title between empty lines.
    pub(crate) fn title(&self, text: &str) -> Result<()> {
        self.line(&format!("\n{}\n", self.paint(text, Tone::Strong)))
    }

    /// Lines as they are.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        self.line(text)
    }

    /// Something that happened now; further lines explain it.
    pub(crate) fn event(&self, text: &str) -> Result<()> {
        let text = text.replace('\n', &format!("\n{:INDENT$}", ""));
        self.line(&format!("{}{text}", self.now()))
    }

    /// A grant that happened now.
    pub(crate) fn grant(&self, text: &str, token: &str) -> Result<()> {
        self.line(&format!("{}{text:<TEXT$}  {}", self.now(), self.paint(token, Tone::Strong)))
    }

    /// A line of two columns.
    pub(crate) fn columns(&self, left: (Tone, String), right: (Tone, String)) -> Result<()> {
        // Padded before it is painted: what paints has no width.
        let (left, right) = (self.paint(&format!("{:LEFT$}", left.1), left.0), self.paint(&right.1, right.0));
        self.line(&format!("{:INDENT$}{left}{right}", ""))
    }

    /// A claim that was found true.
    pub(crate) fn claim(&self, text: &str) -> Result<()> {
        self.line(&format!("  {}  {text}", self.paint("ok", Tone::Good)))
    }

    fn line(&self, text: &str) -> Result<()> {
        writeln!(std::io::stdout().lock(), "{text}")
    }

    fn now(&self) -> String {
        format!("  {:>4.1} s  ", self.elapsed_s())
    }

    fn paint(&self, text: &str, tone: Tone) -> String {
        let style = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
            Tone::Strong => Style::new().bold(),
        };
        if self.has_colours { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
