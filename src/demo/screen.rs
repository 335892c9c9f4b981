//! The demo's output, for a terminal of 80 columns: timed events, with tokens in a column of their own.
//!
//! Colours only on a terminal, and not if `NO_COLOR` is set.

use std::io::{IsTerminal, Result, Write};
use std::time::Instant;

use clap::builder::styling::{AnsiColor, Style};

/// The column where text begins, and the width of text before a token.
const INDENT: usize = 10;
const TEXT: usize = 52;
/// The width of the left one of two columns.
const LEFT: usize = 34;

/// How text is styled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Strong,
}

/// Standard output.
pub(crate) struct Screen {
    has_colours: bool,
    began: Instant,
}

impl Screen {
    /// Times count from now.
    pub(crate) fn new() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { has_colours: std::io::stdout().is_terminal() && !no_color, began: Instant::now() }
    }

    pub(crate) fn elapsed_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A title between empty lines.
    pub(crate) fn title(&self, text: &str) -> Result<()> {
        self.text(&format!("\n{}\n", self.paint(text, Tone::Strong)))
    }

    /// Something that happened now. Further lines are indented.
    pub(crate) fn event(&self, text: &str) -> Result<()> {
        let text = text.replace('\n', &format!("\n{:INDENT$}", ""));
        self.text(&format!("{}{text}", self.now()))
    }

    /// A grant that happened now.
    pub(crate) fn grant(&self, text: &str, token: &str) -> Result<()> {
        self.text(&format!("{}{text:<TEXT$}  {}", self.now(), self.paint(token, Tone::Strong)))
    }

    /// Lines of two columns, after an empty line.
    pub(crate) fn columns<const N: usize>(&self, lines: [((Tone, String), (Tone, String)); N]) -> Result<()> {
        self.text("")?;
        for (left, right) in lines {
            // Padded before it is painted: escape codes have no width.
            let (left, right) =
                (self.paint(&format!("{:LEFT$}", left.1), left.0), self.paint(&right.1, right.0));
            self.text(&format!("{:INDENT$}{left}{right}", ""))?;
        }
        Ok(())
    }

    /// A claim that was verified.
    pub(crate) fn claim(&self, text: &str) -> Result<()> {
        self.text(&format!("  {}  {text}", self.paint("ok", Tone::Good)))
    }

    /// Plain lines.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
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
