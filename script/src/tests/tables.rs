//! The lengths of tables.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::answer;
use crate::Budget;
use crate::table::Table;
use crate::value::{Key, Value};

#[test]
fn a_length_that_depends_on_how_a_table_was_built_ends_the_script() {
    let refused = "! 1: the length of a table with holes is not supported here";
    for table in [
        "local t = {1, nil, 3}",
        "local t = {KEYS[1], ARGV[9], 'x', ARGV[8]}",
        "local t = {} t[1] = 1 t[2] = 2 t[4] = 4",
        "local t = {} t[2] = 2",
        "local t = {1, 2, 3} t[2] = nil",
        "local t = {1, 2, 3} t[1] = nil",
        "local t = {[1] = 1, [3] = 3}",
        "local t = {1} t[1] = nil t[1e9] = 1",
        "local t = {unpack({1, nil, 3}, 1, 3)}",
        "redis.setresp(3) redis.call('set', KEYS[2], 1) local t = redis.call('mget', KEYS[1], KEYS[2])",
    ] {
        for length in [
            "#t",
            "t[#t + 1]",
            "table.getn(t)",
            "unpack(t)",
            "unpack(t, 2)",
            "table.concat(t)",
            "table.concat(t, ',', 1)",
            "table.insert(t, 5)",
            "table.insert(t, 1, 5)",
            "table.remove(t)",
            "table.remove(t, 1)",
        ] {
            let script =
                format!("{table} local ok = pcall(function() local x = {length} end) return 'caught'");
            assert_eq!(answer(script.as_bytes()), refused, "{script}");
        }
        let other = "local n = 0 for i in ipairs(t) do n = n + 1 end for k in pairs(t) do n = n + 1 end local u = {unpack(t, 1, 2)} return t";
        let found = answer(format!("{table} {other}").as_bytes());
        assert!(found.starts_with('['), "{table}: {found}");
    }
}

proptest! {
    /// A table has a length if its positions are those from 1 to it.
    #[test]
    fn a_table_without_holes_has_a_length(
        items in vec(any::<bool>(), 0..6),
        changes in vec((0..10usize, any::<bool>()), 0..40),
        other in any::<bool>(),
    ) {
        let mut budget = Budget::of_request();
        let value = |is_live| if is_live { Value::Bool(true) } else { Value::Nil };
        let mut table = Table::default();
        if other {
            table.set(Key::position(2), Value::Bool(true), &mut budget).unwrap();
            table.set(Key::position(2), Value::Nil, &mut budget).unwrap();
        }
        table.fill(items.iter().map(|is_live| value(*is_live)), &mut budget).unwrap();
        let mut positions: BTreeSet<usize> =
            items.iter().enumerate().filter(|(_, is_live)| **is_live).map(|(index, _)| index + 1).collect();
        for (position, is_live) in changes {
            table.set(Key::position(position), value(is_live), &mut budget).unwrap();
            match is_live && position > 0 {
                true => positions.insert(position),
                false => positions.remove(&position),
            };
            let length = positions.iter().copied().eq(1..=positions.len()).then_some(positions.len());
            prop_assert_eq!(table.len(), length, "{:?}", table);
        }
    }
}
