//! Parts of a Markdown document.

/// The lines outside code blocks.
pub(crate) fn prose(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !is_fence && !in_block
    };
    text.lines().filter(is_prose).collect()
}

/// The texts between backticks, outside code blocks.
pub(crate) fn quoted(text: &str) -> Vec<&str> {
    prose(text).into_iter().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
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
