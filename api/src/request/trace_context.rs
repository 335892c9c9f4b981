//! The header `traceparent` of W3C Trace Context: <https://www.w3.org/TR/trace-context/#traceparent-header>.

/// The ids of a request's trace and of its sender's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext<'a> {
    pub(crate) trace_id: &'a str,
    pub(crate) span_id: &'a str,
}

/// The length of version 00. Later versions may append to it.
const LEN: usize = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".len();

impl<'a> TraceContext<'a> {
    /// Parses the header. `None` if it is malformed: the standard says to ignore it then.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.get(..LEN)?.split('-');
        let [version, trace_id, span_id, flags] = [2, 32, 16, 2].map(|len| hex(parts.next()?, len));
        let (version, trace_id, span_id, _) = (version?, trace_id?, span_id?, flags?);
        let rest = &text[LEN..];
        let is_valid = match version {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let is_set = |id: &str| id.bytes().any(|digit| digit != b'0');
        (is_valid && is_set(trace_id) && is_set(span_id)).then_some(Self { trace_id, span_id })
    }
}

fn hex(text: &str, len: usize) -> Option<&str> {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == len && text.bytes().all(is_digit)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_headers_are_parsed_and_all_others_are_ignored() {
        let (trace_id, span_id) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        for text in [
            format!("00-{trace_id}-{span_id}-01"),
            format!("00-{trace_id}-{span_id}-00"),
            format!("cc-{trace_id}-{span_id}-01"),
            format!("cc-{trace_id}-{span_id}-01-what comes later"),
        ] {
            assert_eq!(TraceContext::parse(&text), Some(TraceContext { trace_id, span_id }), "{text}");
        }
        for text in [
            String::new(),
            format!("00-{trace_id}-{span_id}"),
            format!("00-{trace_id}-{span_id}-"),
            format!("00-{trace_id}-{span_id}-1"),
            format!("00-{trace_id}-{span_id}-01-"),
            format!("00-{trace_id}-{span_id}-010"),
            format!("cc-{trace_id}-{span_id}-01."),
            format!("ff-{trace_id}-{span_id}-01"),
            format!(" 00-{trace_id}-{span_id}-01"),
            format!("00-{trace_id}-{span_id}-0x"),
            format!("00-{}-{span_id}-01", trace_id.to_uppercase()),
            format!("00-{trace_id}-{}-01", span_id.to_uppercase()),
            format!("00-{}-{span_id}-01", "0".repeat(32)),
            format!("00-{trace_id}-{}-01", "0".repeat(16)),
            format!("00_{trace_id}_{span_id}_01"),
            format!("00-{trace_id}{span_id}--01"),
            format!("00-{}é-{span_id}-01", &trace_id[2..]),
        ] {
            assert_eq!(TraceContext::parse(&text), None, "{text}");
        }
    }
}
