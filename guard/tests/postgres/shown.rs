//! Runs the statements of README.md.

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

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

/// Runs one statement with named parameters, whose types the server infers. Returns the number of changed rows.
pub(crate) async fn bound(client: &Client, sql: &str, named: &[(&str, Option<i64>)]) -> u64 {
    try_bound(client, sql, named).await.expect(sql)
}

pub(crate) async fn try_bound(
    client: &Client,
    sql: &str,
    named: &[(&str, Option<i64>)],
) -> Result<u64, tokio_postgres::Error> {
    let (mut sql, mut parameters) = (sql.to_owned(), Vec::<&(dyn ToSql + Sync)>::new());
    for (name, value) in named {
        let name = format!(":{name}");
        if sql.contains(&name) {
            parameters.push(value);
            sql = sql.replace(&name, &format!("${}", parameters.len()));
        }
    }
    client.execute(&sql, &parameters).await
}
