//! Keys that are held or waited for, page by page.

use std::sync::Arc;

use ringfence_wire::{KeyList, Revision};

use crate::cluster::Cluster;
use crate::transport::{Request, encode};
use crate::{Consistency, Error};

/// A listing, from [`Client::list`](crate::Client::list). Each page is a read of its own: keys that change between pages may
/// be missed, or shown in their old state. The revision is that of the first page or, if it is less, of a later one, as nodes that lag
/// may show: a [watch](crate::Client::watch) after it shows every change since.
#[derive(Debug)]
#[must_use = "a listing requests nothing until its pages are read"]
pub struct Listing {
    cluster: Arc<Cluster>,
    prefix: String,
    after: Option<String>,
    page_size: Option<usize>,
    consistency: Consistency,
    is_over: bool,
}

impl Listing {
    pub(crate) fn new(cluster: Arc<Cluster>, prefix: String) -> Self {
        let consistency = Consistency::default();
        Self { cluster, prefix, after: None, page_size: None, consistency, is_over: false }
    }

    /// Begins after the page whose `next` this is.
    pub fn after(self, next: impl Into<String>) -> Self {
        Self { after: Some(next.into()), ..self }
    }

    /// The most keys of a page, from 1 to 1,000. By default 100.
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
        let page: KeyList = self.cluster.read(&Request::get(self.path())).await?;
        self.after.clone_from(&page.next);
        self.is_over = page.next.is_none();
        Ok(Some(page))
    }

    /// All remaining keys, with the revision of their last page.
    pub async fn all(mut self) -> Result<KeyList, Error> {
        let mut all = KeyList { keys: Vec::new(), next: None, revision: Revision::default() };
        while let Some(page) = self.next_page().await? {
            all.revision = page.revision;
            all.keys.extend(page.keys);
        }
        Ok(all)
    }

    fn path(&self) -> String {
        let mut path = format!("/v1/keys?{}&prefix={}", self.consistency.query(), encode(&self.prefix));
        if let Some(after) = &self.after {
            path = format!("{path}&after={}", encode(after));
        }
        if let Some(keys) = self.page_size {
            path = format!("{path}&limit={keys}");
        }
        path
    }
}
