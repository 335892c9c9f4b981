//! Dispatches calls of built-in functions.

use super::arguments::Arguments;
use super::{Host, Machine, Step};
use crate::names::Builtin;

impl<H: Host> Machine<'_, H> {
    /// Runs a built-in function, which pushes its results.
    pub(super) fn run_builtin(&mut self, arguments: &Arguments) -> Step<H> {
        match arguments.builtin {
            Builtin::Assert => self.assert(arguments),
            Builtin::Error => self.error(arguments),
            Builtin::Ipairs => self.ipairs(arguments),
            Builtin::IpairsNext => self.ipairs_next(arguments),
            Builtin::Next => self.next(arguments),
            Builtin::Pairs => self.pairs(arguments),
            // `call` runs every `pcall` itself.
            Builtin::Pcall => Err(self.fail("attempt to call pcall in an unknown way")),
            Builtin::Select => self.select(arguments),
            Builtin::ToNumber => self.parse_number(arguments),
            Builtin::ToString => self.push_string_of(arguments),
            Builtin::Type => self.type_of(arguments),
            Builtin::Unpack => self.unpack(arguments),
            Builtin::StringByte => self.string_byte(arguments),
            Builtin::StringChar => self.string_char(arguments),
            Builtin::StringFind => self.string_find(arguments),
            Builtin::StringFormat => self.string_format(arguments),
            Builtin::StringLen => self.string_len(arguments),
            Builtin::StringLower => self.string_map(arguments, <[u8]>::to_ascii_lowercase),
            Builtin::StringRep => self.string_rep(arguments),
            Builtin::StringReverse => self.string_map(arguments, |text| text.iter().rev().copied().collect()),
            Builtin::StringSub => self.string_sub(arguments),
            Builtin::StringUpper => self.string_map(arguments, <[u8]>::to_ascii_uppercase),
            Builtin::TableConcat => self.table_concat(arguments),
            Builtin::TableGetn => self.table_getn(arguments),
            Builtin::TableInsert => self.table_insert(arguments),
            Builtin::TableRemove => self.table_remove(arguments),
            Builtin::MathAbs => self.math(arguments, f64::abs),
            Builtin::MathCeil => self.math(arguments, f64::ceil),
            Builtin::MathFloor => self.math(arguments, f64::floor),
            Builtin::MathFmod => self.math_fmod(arguments),
            Builtin::MathMax => self.math_most(arguments, |one, most| one > most),
            Builtin::MathMin => self.math_most(arguments, |one, least| one < least),
            Builtin::RedisCall => self.redis_call(arguments),
            Builtin::RedisErrorReply => self.redis_error_reply(arguments),
            Builtin::RedisLog => self.redis_log(arguments),
            Builtin::RedisPcall => self.redis_pcall(arguments),
            Builtin::RedisReplicateCommands => self.push(super::Value::Bool(true)),
            Builtin::RedisSetresp => self.redis_setresp(arguments),
            Builtin::RedisStatusReply => self.redis_status_reply(arguments),
        }
    }
}
