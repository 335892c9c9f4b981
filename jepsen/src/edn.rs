//! A history as Jepsen writes it: one operation a line, in EDN, for the tools that read those.
//!
//! A call is two operations, its invocation and its completion: `:ok` where it took place, `:fail` where it certainly did
//! not, `:info` where that is not known. As in Jepsen a process that does not know what became of its call is dead: what its
//! thread does next it does as another process, the next number that is its own modulo the number of threads. A fault is
//! four operations of `:nemesis`, two as it begins and two as it ends, all `:info`: so Jepsen's own tools pair them.
//!
//! What is asked and answered are maps with the words of [`history`](crate::history), `_` turned to `-`.

use std::collections::HashMap;
use std::io::{self, Write};

use ringfence_wire::{EndReason, ProblemKind};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::history::{Call, Came, Fault, History};

/// Where an operation stands among others of the same microsecond: calls by their ids, each invocation before its
/// completion. So a process that asks again in the microsecond of its last answer is not seen doing two things at once.
type Place = (u64, u64, u8);

enum Operation<'a> {
    Invoke(&'a Call),
    Complete(&'a Call),
    Nemesis(&'a Fault, &'static str),
}

/// Writes all calls and faults of `history`, in the order of time.
pub fn write(history: &History, out: &mut impl Write) -> io::Result<()> {
    let mut operations: Vec<(Place, Operation<'_>)> = Vec::new();
    for call in &history.calls {
        operations.push(((call.sent_us, call.id, 0), Operation::Invoke(call)));
        operations.push(((call.ended_us.max(call.sent_us), call.id, 1), Operation::Complete(call)));
    }
    for fault in &history.faults {
        for _twice in 0..2 {
            operations.push(((fault.from_us, u64::MAX, 0), Operation::Nemesis(fault, "start")));
            operations.push(((fault.to_us, u64::MAX, 1), Operation::Nemesis(fault, "stop")));
        }
    }
    operations.sort_by_key(|(place, _)| *place);

    let threads = history.calls.iter().map(|call| u64::from(call.process) + 1).max().unwrap_or(0);
    let mut processes: HashMap<u32, u64> = HashMap::new();
    for (index, ((time_us, ..), operation)) in operations.iter().enumerate() {
        write!(out, "{{:index {index}, :time {}, ", u128::from(*time_us) * 1_000)?;
        match operation {
            Operation::Invoke(call) | Operation::Complete(call) => {
                let process = processes.entry(call.process).or_insert_with(|| u64::from(call.process));
                if matches!(operation, Operation::Invoke(_)) {
                    write_invocation(call, *process, out)?;
                } else {
                    write_completion(call, *process, out)?;
                    if !call.is_definite() {
                        *process += threads;
                    }
                }
                if let Some(node) = call.node {
                    write!(out, ", :node {node}")?;
                }
            }
            Operation::Nemesis(fault, edge) => {
                write!(out, ":type :info, :process :nemesis, :f ")?;
                write_keyword(&format!("{edge}-{}", fault.nemesis), out)?;
                write!(out, ", :value ")?;
                write_value(&json!({ "what": fault.what, "nodes": fault.nodes }), out)?;
            }
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

fn write_invocation(call: &Call, process: u64, out: &mut impl Write) -> io::Result<()> {
    let (f, asked) = tagged(&call.asked, "f");
    write!(out, ":type :invoke, :process {process}, :f ")?;
    write_keyword(&f, out)?;
    write!(out, ", :value ")?;
    write_value(&Value::Object(asked), out)
}

/// Of what took place, the value is what was answered; of all else it is still what was asked for, with an `:error`.
fn write_completion(call: &Call, process: u64, out: &mut impl Write) -> io::Result<()> {
    let (f, asked) = tagged(&call.asked, "f");
    let (came, mut answer) = tagged(&call.came, "came");
    let kind = match (call.is_definite(), call.may_be_done()) {
        (false, _) => "info",
        (true, false) => "fail",
        (true, true) => "ok",
    };
    write!(out, ":type :{kind}, :process {process}, :f ")?;
    write_keyword(&f, out)?;
    write!(out, ", :value ")?;
    if kind == "ok" {
        answer.insert("came".to_owned(), Value::String(came));
        return write_value(&Value::Object(answer), out);
    }
    write_value(&Value::Object(asked), out)?;
    write!(out, ", :error [")?;
    match &call.came {
        Came::Refused { problem, reason } => {
            write_keyword(problem_name(*problem), out)?;
            if let Some(reason) = reason {
                write!(out, " ")?;
                write_keyword(reason_name(*reason), out)?;
            }
        }
        Came::NotDone { why } | Came::Unknown { why } | Came::Malformed { why } => {
            write_keyword(&came, out)?;
            write!(out, " ")?;
            write_string(why, out)?;
        }
        _ => {
            write_keyword(&came, out)?;
            write!(out, " ")?;
            write_value(&Value::Object(answer), out)?;
        }
    }
    write!(out, "]")
}

/// What serde makes of a tagged enum: its tag, and the rest.
fn tagged(value: &impl Serialize, tag: &str) -> (String, Map<String, Value>) {
    match serde_json::to_value(value) {
        Ok(Value::Object(mut fields)) => match fields.remove(tag) {
            Some(Value::String(name)) => (name, fields),
            _ => ("unnamed".to_owned(), fields),
        },
        _ => ("unnamed".to_owned(), Map::new()),
    }
}

/// The last word of a problem's URN.
pub(crate) fn problem_name(problem: ProblemKind) -> &'static str {
    problem.urn().rsplit(':').next().unwrap_or_else(|| problem.urn())
}

/// As JSON says it.
pub(crate) fn reason_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "released",
        EndReason::Expired => "expired",
        EndReason::Revoked => "revoked",
        EndReason::Abandoned => "abandoned",
    }
}

fn write_value(value: &Value, out: &mut impl Write) -> io::Result<()> {
    match value {
        Value::Null => write!(out, "nil"),
        Value::Bool(value) => write!(out, "{value}"),
        Value::Number(number) => write!(out, "{number}"),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            write!(out, "[")?;
            for (index, item) in items.iter().enumerate() {
                write!(out, "{}", if index == 0 { "" } else { " " })?;
                write_value(item, out)?;
            }
            write!(out, "]")
        }
        Value::Object(fields) => {
            write!(out, "{{")?;
            for (index, (name, value)) in fields.iter().enumerate() {
                write!(out, "{}", if index == 0 { "" } else { ", " })?;
                // Names of metadata are any text, and two of them must not become one.
                if is_word(name) {
                    write_keyword(name, out)?
                } else {
                    write_string(name, out)?
                }
                write!(out, " ")?;
                write_value(value, out)?;
            }
            write!(out, "}}")
        }
    }
}

fn is_word(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn write_keyword(name: &str, out: &mut impl Write) -> io::Result<()> {
    write!(out, ":")?;
    for c in name.chars() {
        write!(out, "{}", if c.is_ascii_alphanumeric() { c } else { '-' })?;
    }
    Ok(())
}

/// Control characters are escaped, line breaks among them: an operation stays one line.
fn write_string(text: &str, out: &mut impl Write) -> io::Result<()> {
    write!(out, "\"")?;
    for c in text.chars() {
        match c {
            '"' => write!(out, "\\\"")?,
            '\\' => write!(out, "\\\\")?,
            '\n' => write!(out, "\\n")?,
            '\r' => write!(out, "\\r")?,
            '\t' => write!(out, "\\t")?,
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(out, "\\u{:04x}", u32::from(c))?
            }
            c => write!(out, "{c}")?,
        }
    }
    write!(out, "\"")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::report::invented;

    fn lines(history: &History) -> Vec<String> {
        let mut out = Vec::new();
        write(history, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    /// The text after `name` up to the next space, comma or bracket.
    fn field<'a>(line: &'a str, name: &str) -> &'a str {
        let rest = &line[line.find(name).unwrap_or_else(|| panic!("{name} in {line}")) + name.len()..];
        rest.trim_start().split([' ', ',', '}']).next().unwrap()
    }

    /// Reads `line` as an EDN reader would: brackets match, strings end, and nothing stands in them raw.
    fn is_well_formed(line: &str) -> bool {
        let mut open = Vec::new();
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '{' => open.push('}'),
                '[' => open.push(']'),
                '}' | ']' if open.pop() != Some(c) => return false,
                '"' => loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some('"' | '\\' | 'n' | 'r' | 't') => {}
                            Some('u') if chars.by_ref().take(4).all(|c| c.is_ascii_hexdigit()) => {}
                            _ => return false,
                        },
                        Some(c) if !c.is_control() => {}
                        _ => return false,
                    }
                },
                _ => {}
            }
        }
        open.is_empty()
    }

    #[test]
    fn every_line_is_well_formed_whatever_stands_in_keys_labels_and_errors() {
        let history = invented::history(7, 2_000);
        let lines = lines(&history);
        assert_eq!(lines.len(), 2 * history.calls.len() + 4 * history.faults.len());
        for line in &lines {
            assert!(is_well_formed(line), "{line}");
        }
        assert!(
            lines.iter().any(|line| line.contains(r#"</script>\"\\"#)),
            "the key that needs escapes is there"
        );
    }

    #[test]
    fn every_completion_has_its_invocation_and_a_process_does_one_thing_at_a_time() {
        let history = invented::history(7, 2_000);
        let mut open: BTreeMap<u64, String> = BTreeMap::new();
        let (mut dead, mut kinds, mut time) = (BTreeSet::new(), BTreeSet::new(), 0);
        for (index, line) in lines(&history).iter().enumerate() {
            assert_eq!(field(line, ":index"), index.to_string());
            let at: u64 = field(line, ":time").parse().unwrap();
            assert!(at >= time, "{line}");
            time = at;
            if field(line, ":process") == ":nemesis" {
                assert_eq!(field(line, ":type"), ":info");
                continue;
            }
            let process: u64 = field(line, ":process").parse().unwrap();
            let (kind, f) = (field(line, ":type").to_owned(), field(line, ":f ").to_owned());
            if kind == ":invoke" {
                assert!(!dead.contains(&process), "a process that does not know goes on: {line}");
                assert_eq!(open.insert(process, f), None, "{line}");
            } else {
                assert_eq!(open.remove(&process), Some(f), "{line}");
                if kind == ":info" {
                    dead.insert(process);
                }
            }
            kinds.insert(kind);
        }
        assert!(open.is_empty(), "all calls are completed: {open:?}");
        assert_eq!(kinds, [":fail", ":info", ":invoke", ":ok"].map(str::to_owned).into());
        assert!(dead.len() > 1, "processes died, and their threads went on");
    }

    #[test]
    fn a_call_reads_as_in_jepsen() {
        let mut history = invented::history(7, 0);
        history.faults.truncate(1);
        history.calls = vec![invented::refused_release(), invented::unknown_write()];
        let lines = lines(&history);
        let lease = "0000000000000000000000000000002a";
        let lease = lease.parse::<ringfence_wire::LeaseId>().unwrap();
        assert_eq!(
            lines[..4],
            [
                format!("{{:index 0, :time 1000000, :type :invoke, :process 0, :f :release, :value {{:lease \"{lease}\"}}, :node 2}}"),
                format!("{{:index 1, :time 3000000, :type :fail, :process 0, :f :release, :value {{:lease \"{lease}\"}}, :error [:lease-gone :expired], :node 2}}"),
                "{:index 2, :time 4000000, :type :invoke, :process 1, :f :write, :value {:fence 5, :key \"k\", :over 0, :token 5, :value 9}}".to_owned(),
                "{:index 3, :time 6000000, :type :info, :process 1, :f :write, :value {:fence 5, :key \"k\", :over 0, :token 5, :value 9}, :error [:unknown \"it \\\"hung\\\"\"]}".to_owned(),
            ]
        );
    }
}
