use std::fmt::Display;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use ringfence_wire::{Key, Token};
use tower_layer::Layer;
use tower_service::Service;

use super::{Refused, Target, headers};
use crate::async_guard::{AsyncGuard, AsyncGuardedKey, FenceError, Interrupted};
use crate::{Admission, Claim};

/// Guards the writes of the services under it, if all writes go through this layer, in this process. Clones share the
/// numbers.
///
/// An admitted request has its [`Claim`] in the extensions.
pub struct GuardLayer<K, A>(Arc<Shared<K, A>>);

/// A service under a [`GuardLayer`].
pub struct GuardService<S, K, A> {
    inner: S,
    guard: GuardLayer<K, A>,
}

struct Shared<K, A> {
    target_of: K,
    ask: A,
    max_bytes: usize,
    guard: AsyncGuard,
}

impl<K, A> Clone for GuardLayer<K, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Clone, K, A> Clone for GuardService<S, K, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), guard: self.guard.clone() }
    }
}

impl<K, A, F, E> GuardLayer<K, A>
where
    K: Fn(&Parts) -> Target,
    A: Fn(Key) -> F,
    F: Future<Output = Result<Token, E>>,
    E: Display,
{
    /// - `target_of` tells what a request is for, and so which key guards it. Where a handler might write, answer
    ///   [`Target::Open`] only for what you have recognized.
    /// - `ask` gets the fence of an unknown key from the cluster, by a linearizable read (`GET /v1/keys/{key}`). The mirror
    ///   does not suffice. It must time out. An error, or a number that cannot be a fence, is answered 503.
    /// - `max_keys`: about how many numbers are kept.
    /// - `max_bytes`: the largest body. Bodies of guarded requests are read whole.
    pub fn new(target_of: K, ask: A, max_keys: usize, max_bytes: usize) -> Self {
        Self(Arc::new(Shared { target_of, ask, max_bytes, guard: AsyncGuard::new(max_keys) }))
    }

    /// The guarded key, to read or reset its number. Asks the cluster if the number is unknown.
    pub async fn key(&self, key: &Key) -> Result<AsyncGuardedKey, FenceError<E>> {
        let Shared { guard, ask, .. } = &*self.0;
        guard.key_or_ask(key, ask).await
    }

    /// Checks all but the number. Returns the request for the handler.
    async fn check<B>(
        &self,
        key: &Key,
        mut parts: Parts,
        body: B,
    ) -> Result<(Claim, Request<B>, AsyncGuardedKey), Refused>
    where
        B: Body + From<Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let claim = headers::claim(&parts.headers, key)?;
        let body = read_body(body, self.0.max_bytes).await?;
        let guarded = self.key(key).await.map_err(Refused::fence_unknown)?;
        parts.extensions.insert(claim);
        Ok((claim, Request::from_parts(parts, body.into()), guarded))
    }
}

impl<S, K, A> Layer<S> for GuardLayer<K, A> {
    type Service = GuardService<S, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardService { inner, guard: self.clone() }
    }
}

impl<S, K, A, F, E, B, R> Service<Request<B>> for GuardService<S, K, A>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    K: Fn(&Parts) -> Target + Send + Sync + 'static,
    A: Fn(Key) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Token, E>> + Send + 'static,
    E: Display + Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: From<String> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone may not be ready; the original is.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let guard = self.guard.clone();
        let (parts, body) = request.into_parts();
        let key = match (guard.0.target_of)(&parts) {
            Target::Guarded(key) if !parts.method.is_safe() || headers::has_any(&parts.headers) => key,
            Target::Guarded(_) | Target::Open => {
                return Box::pin(inner.call(Request::from_parts(parts, body)));
            }
            Target::Refused => return Box::pin(ready(Ok(Refused::without_key().into_response()))),
        };
        Box::pin(async move {
            let (claim, request, guarded) = match guard.check(&key, parts, body).await {
                Ok(checked) => checked,
                Err(refused) => return Ok(refused.into_response()),
            };
            match guarded.write(claim, move || inner.call(request)).await {
                Ok(Admission::Accepted(answer)) => answer,
                Ok(Admission::Stale { high }) => Ok(Refused::stale(high).into_response()),
                Err(Interrupted) => Ok(Refused::interrupted().into_response()),
            }
        })
    }
}

async fn read_body<B: Body>(body: B, max_bytes: usize) -> Result<Bytes, Refused>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, max_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(why) if why.is::<LengthLimitError>() => Err(Refused::too_large(max_bytes)),
        Err(why) => Err(Refused::invalid("body", why.to_string())),
    }
}
