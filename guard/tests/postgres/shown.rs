//! The SQL statements that documents show.

/// guard/README.md.
pub(crate) const PAGE: &str = include_str!("../../README.md");

/// The statements under `-- label` in the part of [`PAGE`] that begins with `form`. They end with the next comment or with
/// the block.
pub(crate) fn shown(form: &str, label: &str) -> String {
    shown_in(PAGE, form, label)
}

/// The same for any document.
pub(crate) fn shown_in(document: &str, form: &str, label: &str) -> String {
    let part = &document[document.find(form).expect(form)..];
    let begins = |line: &str| {
        line.strip_prefix("-- ").is_some_and(|text| text == label || text.starts_with(&format!("{label}:")))
    };
    let mut lines = part.lines().skip_while(|line| !begins(line));
    lines.next().expect(label);
    let statements: Vec<_> =
        lines.take_while(|line| !line.starts_with("-- ") && !line.starts_with("```")).collect();
    statements.join("\n")
}
