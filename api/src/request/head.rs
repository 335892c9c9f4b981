use axum::extract::Request;
use axum::http::header::{HOST, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Version};
use ringfence_wire::FieldError;

/// The maximum size of a request's target and headers together.
const MAX_BYTES: usize = 16 << 10;

/// Refuses a head that is longer than any legitimate one, or that others may read in another way.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), FieldError> {
    if request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST) {
        return Err(FieldError::new("Host", "missing"));
    }
    let is_known = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !request.headers().get_all(TRANSFER_ENCODING).iter().all(is_known) {
        return Err(FieldError::new("Transfer-Encoding", "must be chunked"));
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    if target + headers.sum::<usize>() > MAX_BYTES {
        let detail =
            "the target and headers of a request may have at most 16 KiB (16,384 bytes) together".to_owned();
        return Err(FieldError { field: None, detail });
    }
    Ok(())
}
