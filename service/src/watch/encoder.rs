use bytes::{Bytes, BytesMut};
use ringfence_lease::Event;
use ringfence_wire::{CutOff, Revision};

/// How a door writes down what its watches are sent.
pub trait Encoder: Copy + Default + Send + Sync + 'static {
    /// The beginning of a stream of the changes after `after`.
    fn head(self, after: Revision) -> Bytes;

    /// A position to resume from, without an event.
    fn bookmark(self, revision: Revision) -> Bytes;

    /// The end of a stream that is cut off.
    fn cut_off(self, cut_off: CutOff) -> Bytes;

    /// Appends `event` with its keys that start with `prefix`, if there are any. Called once for all watches of the prefix.
    fn put_event(self, text: &mut BytesMut, event: &Event, prefix: &str);
}
