use std::fmt::Display;
use std::future::Future;
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

use super::{Refused, headers};
use crate::tasks::{AsyncGuard, AsyncGuardedKey, NotKnown, Written};
use crate::{Claim, ClaimError};

/// Guards what the services under it write, if nobody writes it but through this layer, in this process. A clone has the
/// same numbers.
///
/// The handlers find the [`Claim`](crate::Claim) in the extensions of a request that was admitted.
pub struct GuardLayer<K, A>(Arc<Shared<K, A>>);

/// A service under a [`GuardLayer`].
pub struct GuardService<S, K, A> {
    inner: S,
    guard: GuardLayer<K, A>,
}

struct Shared<K, A> {
    key_of: K,
    ask: A,
    most_bytes: usize,
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
    K: Fn(&Parts) -> Option<Key>,
    A: Fn(Key) -> F,
    F: Future<Output = Result<Token, E>>,
    E: Display,
{
    /// - `key_of` says which key guards what a request asks for; `None` lets it pass unguarded.
    /// - `ask` gets the fence of a key from the cluster, by a linearizable read (`GET /v1/keys/{key}`): when it was not
    ///   used lately, or not since the start. A mirror's word is not enough. It has to give up after a while. An error, or a
    ///   number that no fence can be, is answered 503.
    /// - `most_keys`: about how many numbers are kept.
    /// - `most_bytes`: how large a body may be. Bodies of guarded requests are read whole.
    pub fn new(key_of: K, ask: A, most_keys: usize, most_bytes: usize) -> Self {
        Self(Arc::new(Shared { key_of, ask, most_bytes, guard: AsyncGuard::new(most_keys) }))
    }

    /// The number of a key, which may have to be asked for.
    pub async fn high(&self, key: &Key) -> Result<Token, NotKnown<E>> {
        Ok(self.key(key).await?.high().await)
    }

    /// Sets the number, down as well, to a fence of the key that the cluster gave.
    pub async fn reset(&self, key: &Key, fence: Token) -> Result<Result<(), ClaimError>, NotKnown<E>> {
        Ok(self.key(key).await?.reset(fence).await)
    }

    async fn key(&self, key: &Key) -> Result<AsyncGuardedKey, NotKnown<E>> {
        let Shared { guard, ask, .. } = &*self.0;
        guard.key_or_ask(key, ask).await
    }

    /// The request as the handler gets it, if nothing but the token can be wrong with it.
    async fn claimed<B>(
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
        let body = whole(body, self.0.most_bytes).await?;
        let known = self.key(key).await.map_err(Refused::fence_unknown)?;
        parts.extensions.insert(claim);
        Ok((claim, Request::from_parts(parts, body.into()), known))
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
    K: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
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
        // The clone may not be ready: the one that is takes the request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let guard = self.guard.clone();
        let (parts, body) = request.into_parts();
        let key = (guard.0.key_of)(&parts);
        let Some(key) = key.filter(|_| !parts.method.is_safe() || headers::has_any(&parts.headers)) else {
            return Box::pin(inner.call(Request::from_parts(parts, body)));
        };
        Box::pin(async move {
            let (claim, request, known) = match guard.claimed(&key, parts, body).await {
                Ok(claimed) => claimed,
                Err(refused) => return Ok(refused.into_response()),
            };
            match known.write(claim, move || inner.call(request)).await {
                Written::Accepted(answer) => answer,
                Written::Stale { high } => Ok(Refused::stale(high).into_response()),
                Written::BrokenOff => Ok(Refused::broken_off().into_response()),
            }
        })
    }
}

async fn whole<B: Body>(body: B, most_bytes: usize) -> Result<Bytes, Refused>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, most_bytes).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(why) if why.is::<LengthLimitError>() => Err(Refused::too_large(most_bytes)),
        Err(why) => Err(Refused::invalid("body", why.to_string())),
    }
}
