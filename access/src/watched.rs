use std::path::PathBuf;

use ringfence_tls::Error;

use crate::Rules;

/// The rules of a file, which is looked at again and again.
pub type Watched = ringfence_tls::Watched<Rules>;

/// Loads the file.
///
/// # Errors
/// It cannot be read, or its rules cannot be used.
pub fn watch(file: PathBuf) -> Result<Watched, Error> {
    Watched::new(vec![file], |contents, _| {
        let [content] = contents else { unreachable!("there is one file") };
        let text = str::from_utf8(content.bytes()?).map_err(|_| content.error("is not UTF-8"))?;
        let rules = Rules::parse(text).map_err(|error| content.error(error.to_string()))?;
        Ok((rules, Vec::new()))
    })
}
