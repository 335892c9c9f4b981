//! Parts of a Markdown document.

/// The texts between backticks, outside code blocks.
pub(crate) fn quoted(text: &str) -> Vec<&str> {
    let mut quoted = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            quoted.extend(line.split('`').skip(1).step_by(2));
        }
    }
    quoted
}

/// The cells of the table whose header begins with `first`, row by row, without the header.
pub(crate) fn table<'a>(text: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let header = format!("| {first} |");
    let rows = text.lines().skip_while(|line| !line.starts_with(&header)).skip(2);
    let cells = |line: &'a str| line.trim().trim_matches('|').split('|').map(str::trim).collect();
    rows.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The section below the heading `title`, up to the next heading.
pub(crate) fn section<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let begin = text.find(&format!("# {title}\n"))?;
    let body = &text[begin + title.len() + 3..];
    Some(body.find("\n#").map_or(body, |end| &body[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A\n\n`one` and `two`\n```sh\n`three`\n```\n\n| name | use |\n|---|---|\n| `x`, y | z |\n\n## B\n\nlast\n";

    #[test]
    fn parts_of_a_document_are_found() {
        assert_eq!(quoted(TEXT), ["one", "two", "x"]);
        assert_eq!(table(TEXT, "name"), [["`x`, y", "z"]]);
        assert_eq!(section(TEXT, "B"), Some("\nlast\n"));
        assert!(!section(TEXT, "A").unwrap().contains("last"));
        assert_eq!((section(TEXT, "C"), table(TEXT, "use").len()), (None, 0));
    }
}
