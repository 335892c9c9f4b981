use axum::extract::Request;
use ringfence_wire::FieldError;

/// The maximum size of a request's target and headers together.
const MAX_BYTES: usize = 16 << 10;

/// Refuses a head that is longer than any legitimate one.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), FieldError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    if target + headers.sum::<usize>() > MAX_BYTES {
        let detail =
            "the target and headers of a request may have at most 16 KiB (16,384 bytes) together".to_owned();
        return Err(FieldError { field: None, detail });
    }
    Ok(())
}
