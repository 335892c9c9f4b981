use axum::extract::Request;
use ringfence_wire::FieldError;

/// The most bytes of a request's target and headers.
const MAX_BYTES: usize = 16 << 10;

/// Refuses a request whose head is longer than any that has a use here.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), FieldError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    if target + headers.sum::<usize>() > MAX_BYTES {
        let detail = "the target and the headers of a request have at most 16 KiB (16,384 bytes)".to_owned();
        return Err(FieldError { field: None, detail });
    }
    Ok(())
}
