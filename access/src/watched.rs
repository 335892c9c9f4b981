use std::path::PathBuf;
use std::sync::Arc;

use ringfence_tls::{Certified, InUse, Look, Reload};

use crate::Rules;

/// The rules of a file, which is looked at again and again.
pub struct Watched(ringfence_tls::Watched<Rules>);

impl Watched {
    /// Loads the file.
    ///
    /// # Errors
    /// It cannot be read, or its rules cannot be used.
    pub fn load(file: PathBuf) -> Result<Self, ringfence_tls::Error> {
        let rules = |contents: &[ringfence_tls::Content], _: Option<&Rules>| {
            let [content] = contents else { unreachable!("there is one file") };
            let text = str::from_utf8(content.bytes()?).map_err(|_| content.error("is not UTF-8"))?;
            Rules::parse(text).map_err(|error| content.error(error.to_string()))
        };
        ringfence_tls::Watched::load(vec![file], rules).map(Self)
    }

    /// The rules in use now.
    pub fn current(&self) -> Arc<Rules> {
        self.0.current()
    }

    /// Rises whenever new rules are in use.
    pub fn version(&self) -> u64 {
        self.0.version()
    }
}

impl Certified for Rules {}

impl Reload for Watched {
    fn look(&self, at_once: bool) -> Look {
        self.0.look(at_once)
    }

    fn refusal(&self) -> Option<ringfence_tls::Error> {
        self.0.refusal()
    }

    fn in_use(&self) -> Vec<InUse> {
        Vec::new()
    }
}
