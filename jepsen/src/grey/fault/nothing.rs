//! Nothing is wrong.

use super::{Fault, Scene};

/// The control: where this row is broken, the machine is too busy for the others to tell anything.
#[derive(Debug)]
pub(in crate::grey) struct Nothing;

impl Fault for Nothing {
    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        Ok("nothing was wrong".to_owned())
    }
}
