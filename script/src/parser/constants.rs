//! The constants of a script, each of them once.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::code::Constant;

#[derive(Debug, Default)]
pub(super) struct Constants<'t> {
    pub(super) all: Vec<Constant>,
    pub(super) text: Vec<u8>,
    strings: HashMap<Cow<'t, [u8]>, u32>,
    numbers: HashMap<u64, u32>,
}

impl<'t> Constants<'t> {
    pub(super) fn string(&mut self, string: Cow<'t, [u8]>) -> u32 {
        if let Some(known) = self.strings.get(&string) {
            return *known;
        }
        let start = self.text.len() as u32;
        self.text.extend_from_slice(&string);
        let id = self.add(Constant::String { start, end: self.text.len() as u32 });
        self.strings.insert(string, id);
        id
    }

    pub(super) fn number(&mut self, number: f64) -> u32 {
        if let Some(known) = self.numbers.get(&number.to_bits()) {
            return *known;
        }
        let id = self.add(Constant::Number(number));
        self.numbers.insert(number.to_bits(), id);
        id
    }

    fn add(&mut self, constant: Constant) -> u32 {
        self.all.push(constant);
        (self.all.len() - 1) as u32
    }
}
