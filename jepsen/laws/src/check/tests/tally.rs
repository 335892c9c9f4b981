use std::num::NonZeroU32;

use ringfence_wire::Mode;

use super::super::tally::Tally;

fn together(modes: &[Mode]) -> bool {
    let mut tally = Tally::default();
    // What was taken out again leaves nothing behind.
    tally.add(Mode::Shared { limit: NonZeroU32::new(1) });
    modes.iter().for_each(|&mode| tally.add(mode));
    tally.remove(Mode::Shared { limit: NonZeroU32::new(1) });
    tally.is_compatible()
}

#[test]
fn one_is_always_compatible_and_many_only_shared_and_within_the_smallest_limit() {
    let read = Mode::Shared { limit: None };
    let up_to = |limit| Mode::Shared { limit: NonZeroU32::new(limit) };
    assert!(together(&[]) && together(&[Mode::Exclusive]) && together(&[up_to(1)]));
    assert!(together(&[read; 9]) && together(&[up_to(3), up_to(2)]) && together(&[read, up_to(2)]));
    assert!(!together(&[Mode::Exclusive, read]) && !together(&[Mode::Exclusive; 2]));
    assert!(!together(&[up_to(1), read]) && !together(&[up_to(9), up_to(2), read]));
    let mut two = Tally::default();
    two.add(up_to(2));
    assert!(two.bears(read) && !two.bears(Mode::Exclusive) && two.is_compatible());
}
