//! The authorities of one file, for a library that makes its own connections.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::certificates::certificates;
use crate::files::Content;
use crate::trusted::Trusted;
use crate::watched::{Certified, Look, Reload, Watched};
use crate::{Error, InUse, now};

/// The authorities in a file.
pub struct Authorities(Watched<Loaded>);

struct Loaded(Trusted);

impl Authorities {
    /// Loads the file.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn load(file: PathBuf) -> Result<Self, Error> {
        Watched::load(vec![file], load).map(Self)
    }

    /// Those that are live now, in PEM, for the next connection. If none is, nobody is to be trusted.
    pub fn live(&self) -> String {
        let (current, now) = (self.0.current(), now());
        let Loaded(trusted) = &*current;
        let all = trusted.in_use.iter().zip(&trusted.all);
        all.filter(|(one, _)| one.is_live(now))
            .map(|(_, certificate)| {
                format!(
                    "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
                    STANDARD.encode(certificate)
                )
            })
            .collect()
    }
}

impl Reload for Authorities {
    fn look(&self, at_once: bool) -> Look {
        self.0.look(at_once)
    }

    fn refusal(&self) -> Option<Error> {
        self.0.refusal()
    }

    fn in_use(&self) -> Vec<InUse> {
        self.0.current().in_use().to_vec()
    }
}

impl Certified for Loaded {
    fn in_use(&self) -> &[InUse] {
        &self.0.in_use
    }
}

/// A server may sign its own certificate, so these need not be certificates of authorities.
fn load(contents: &[Content], old: Option<&Loaded>) -> Result<Loaded, Error> {
    let [authority] = contents else { unreachable!("`Authorities::load` names one file") };
    let new = Loaded(Trusted::new(authority, certificates(authority)?)?);
    new.is_no_worse_than(old)?;
    Ok(new)
}
