//! Lists that are read up to a length.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, de};

/// Reads at most `MAX` items. What follows may be much, and is not read.
pub(crate) fn list<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<const MAX: usize, T>(PhantomData<T>);
    impl<'de, const MAX: usize, T: Deserialize<'de>> de::Visitor<'de> for List<MAX, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == MAX {
                    return Err(de::Error::custom(format_args!(
                        "a list of at most {MAX}, and this one is longer"
                    )));
                }
                list.push(item);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(List::<MAX, T>(PhantomData))
}

/// The same, or null.
pub(crate) fn some_list<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    struct Items<const MAX: usize, T>(Vec<T>);
    impl<'de, const MAX: usize, T: Deserialize<'de>> Deserialize<'de> for Items<MAX, T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            list::<MAX, T, D>(deserializer).map(Self)
        }
    }
    Ok(Option::<Items<MAX, T>>::deserialize(deserializer)?.map(|items| items.0))
}
