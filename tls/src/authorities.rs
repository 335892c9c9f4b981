//! The authorities of one file, for a library that makes its own connections.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::certificates::certificates;
use crate::trusted::Trusted;
use crate::watched::{Watched, no_worse};
use crate::{Error, now};

/// The authorities in a file.
pub type Authorities = Watched<Trusted>;

impl Authorities {
    /// Loads the file.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn load(file: PathBuf) -> Result<Self, Error> {
        // A server may sign its own certificate, so these need not be certificates of authorities.
        Self::new(vec![file], |contents, old| {
            let [authority] = contents else { unreachable!("there is one file") };
            let new = Trusted::new(authority, certificates(authority)?)?;
            no_worse(&new.in_use, old)?;
            let in_use = new.in_use.clone();
            Ok((new, in_use))
        })
    }

    /// Those that are live now, in PEM, for the next connection. If none is, nobody is to be trusted.
    pub fn live(&self) -> String {
        let (trusted, now) = (self.loaded(), now());
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
