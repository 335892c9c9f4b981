//! The SQL statements of README.md.

const README: &str = include_str!("../../README.md");

/// The statements under `-- label` in the part of README.md that begins with `form`, up to the next comment or the end of
/// the block.
pub(crate) fn shown(form: &str, label: &str) -> String {
    let part = &README[README.find(form).expect(form)..];
    let begins = |line: &str| {
        line.strip_prefix("-- ").is_some_and(|text| text == label || text.starts_with(&format!("{label}:")))
    };
    let mut lines = part.lines().skip_while(|line| !begins(line));
    lines.next().expect(label);
    let statements: Vec<_> =
        lines.take_while(|line| !line.starts_with("-- ") && !line.starts_with("```")).collect();
    statements.join("\n")
}
