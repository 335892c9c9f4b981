//! Keys that are held or waited for, page by page.

use std::fmt::Display;
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::{KeyList, Revision};

use crate::call::read;
use crate::client::Shared;
use crate::exchange::Call;
use crate::{Consistency, Error};

/// A listing, from [`Client::list`](crate::Client::list). Every page is read on its own: keys that change meanwhile may be
/// missed or shown as they were. The revision is that of the first page, so that a [watch](crate::Client::watch) from
/// there shows all that changed since.
#[derive(Debug)]
#[must_use = "a listing asks nothing until its pages are asked for"]
pub struct Listing {
    shared: Arc<Shared>,
    prefix: String,
    after: Option<String>,
    page_size: Option<usize>,
    consistency: Consistency,
    is_over: bool,
}

impl Listing {
    pub(crate) fn new(shared: Arc<Shared>, prefix: String) -> Self {
        let consistency = Consistency::default();
        Self { shared, prefix, after: None, page_size: None, consistency, is_over: false }
    }

    /// Begins after a page whose `next` was this.
    pub fn after(self, next: impl Into<String>) -> Self {
        Self { after: Some(next.into()), ..self }
    }

    /// How many keys a page has at most, from 1 to 1,000; 100 if nothing is said.
    pub fn page_size(self, keys: usize) -> Self {
        Self { page_size: Some(keys), ..self }
    }

    /// How fresh each page is.
    pub fn consistency(self, consistency: Consistency) -> Self {
        Self { consistency, ..self }
    }

    /// The next page; `None` after the last.
    pub async fn next_page(&mut self) -> Result<Option<KeyList>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let page: KeyList = read(&self.shared.endpoints, &Call::get(self.path())).await?;
        self.after.clone_from(&page.next);
        self.is_over = page.next.is_none();
        Ok(Some(page))
    }

    /// All keys from here on, with the revision of the first page.
    pub async fn all(mut self) -> Result<KeyList, Error> {
        let mut all = KeyList { keys: Vec::new(), next: None, revision: Revision::default() };
        while let Some(page) = self.next_page().await? {
            if all.keys.is_empty() {
                all.revision = page.revision;
            }
            all.keys.extend(page.keys);
        }
        Ok(all)
    }

    fn path(&self) -> String {
        let mut path = format!("/v1/keys?{}&prefix={}", self.consistency.query(), encoded(&self.prefix));
        if let Some(after) = &self.after {
            path = format!("{path}&after={}", encoded(after));
        }
        if let Some(keys) = self.page_size {
            path = format!("{path}&limit={keys}");
        }
        path
    }
}

fn encoded(text: &str) -> impl Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}
