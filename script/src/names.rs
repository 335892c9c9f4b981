//! The names that a script can use, and the names that only Redis has.

/// A built-in function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Builtin {
    Assert,
    Error,
    Ipairs,
    /// The iterator of `ipairs`.
    IpairsNext,
    Next,
    Pairs,
    Pcall,
    Select,
    ToNumber,
    ToString,
    Type,
    Unpack,
    StringByte,
    StringChar,
    StringFind,
    StringFormat,
    StringLen,
    StringLower,
    StringRep,
    StringReverse,
    StringSub,
    StringUpper,
    TableConcat,
    TableGetn,
    TableInsert,
    TableRemove,
    MathAbs,
    MathCeil,
    MathFloor,
    MathFmod,
    MathMax,
    MathMin,
    RedisCall,
    RedisErrorReply,
    RedisLog,
    RedisPcall,
    RedisReplicateCommands,
    RedisSetresp,
    RedisStatusReply,
}

/// A table of built-in functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Library {
    Math,
    Redis,
    String,
    Table,
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    Builtin(Builtin),
    Library(Library),
    Number(f64),
    /// `KEYS`.
    Keys,
    /// `ARGV`.
    Arguments,
    /// Only Redis has it.
    Missing,
}

use Meaning::Builtin as Is;

type Names = &'static [(&'static str, Meaning)];

macro_rules! words {
    ($($word:ident)*) => { &[$(stringify!($word)),*] };
}

const GLOBALS: Names = &[
    ("KEYS", Meaning::Keys),
    ("ARGV", Meaning::Arguments),
    ("math", Meaning::Library(Library::Math)),
    ("redis", Meaning::Library(Library::Redis)),
    ("string", Meaning::Library(Library::String)),
    ("table", Meaning::Library(Library::Table)),
    ("assert", Is(Builtin::Assert)),
    ("error", Is(Builtin::Error)),
    ("ipairs", Is(Builtin::Ipairs)),
    ("next", Is(Builtin::Next)),
    ("pairs", Is(Builtin::Pairs)),
    ("pcall", Is(Builtin::Pcall)),
    ("select", Is(Builtin::Select)),
    ("tonumber", Is(Builtin::ToNumber)),
    ("tostring", Is(Builtin::ToString)),
    ("type", Is(Builtin::Type)),
    ("unpack", Is(Builtin::Unpack)),
];
const MISSING_GLOBALS: &[&str] = words![
    bit cjson cmsgpack coroutine os struct _G _VERSION collectgarbage gcinfo getfenv getmetatable load
    loadstring newproxy rawequal rawget rawset setfenv setmetatable xpcall
];

const MATH: Names = &[
    ("abs", Is(Builtin::MathAbs)),
    ("ceil", Is(Builtin::MathCeil)),
    ("floor", Is(Builtin::MathFloor)),
    ("fmod", Is(Builtin::MathFmod)),
    ("mod", Is(Builtin::MathFmod)),
    ("max", Is(Builtin::MathMax)),
    ("min", Is(Builtin::MathMin)),
    ("huge", Meaning::Number(f64::INFINITY)),
    ("pi", Meaning::Number(std::f64::consts::PI)),
];
const MISSING_MATH: &[&str] = words![
    acos asin atan atan2 cos cosh deg exp frexp ldexp log log10 modf pow rad random randomseed sin sinh sqrt
    tan tanh
];

const REDIS: Names = &[
    ("call", Is(Builtin::RedisCall)),
    ("error_reply", Is(Builtin::RedisErrorReply)),
    ("log", Is(Builtin::RedisLog)),
    ("pcall", Is(Builtin::RedisPcall)),
    ("replicate_commands", Is(Builtin::RedisReplicateCommands)),
    ("setresp", Is(Builtin::RedisSetresp)),
    ("status_reply", Is(Builtin::RedisStatusReply)),
    ("LOG_DEBUG", Meaning::Number(0.0)),
    ("LOG_VERBOSE", Meaning::Number(1.0)),
    ("LOG_NOTICE", Meaning::Number(2.0)),
    ("LOG_WARNING", Meaning::Number(3.0)),
];
const MISSING_REDIS: &[&str] = words![
    acl_check_cmd breakpoint debug set_repl sha1hex REPL_ALL REPL_AOF REPL_NONE REPL_REPLICA REPL_SLAVE
    REDIS_VERSION REDIS_VERSION_NUM
];

const STRING: Names = &[
    ("byte", Is(Builtin::StringByte)),
    ("char", Is(Builtin::StringChar)),
    ("find", Is(Builtin::StringFind)),
    ("format", Is(Builtin::StringFormat)),
    ("len", Is(Builtin::StringLen)),
    ("lower", Is(Builtin::StringLower)),
    ("rep", Is(Builtin::StringRep)),
    ("reverse", Is(Builtin::StringReverse)),
    ("sub", Is(Builtin::StringSub)),
    ("upper", Is(Builtin::StringUpper)),
];
const MISSING_STRING: &[&str] = words![dump gfind gmatch gsub match];

const TABLE: Names = &[
    ("concat", Is(Builtin::TableConcat)),
    ("getn", Is(Builtin::TableGetn)),
    ("insert", Is(Builtin::TableInsert)),
    ("remove", Is(Builtin::TableRemove)),
];
const MISSING_TABLE: &[&str] = words![foreach foreachi maxn setn sort];

/// The meaning of a global variable, if Redis has it.
pub(super) fn global(name: &[u8]) -> Option<Meaning> {
    find(GLOBALS, MISSING_GLOBALS, name)
}

fn find(here: Names, missing: &[&str], name: &[u8]) -> Option<Meaning> {
    let found = here.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, meaning)| *meaning);
    found.or_else(|| missing.iter().any(|known| known.as_bytes() == name).then_some(Meaning::Missing))
}

impl Builtin {
    /// Its name in its library.
    pub(super) fn name(self) -> &'static str {
        let mut all = [GLOBALS, MATH, REDIS, STRING, TABLE].into_iter().flatten();
        all.find(|(_, meaning)| *meaning == Is(self)).map_or("?", |(name, _)| name)
    }
}

impl Library {
    pub(super) fn name(self) -> &'static str {
        let is_it = |(_, meaning): &&(&'static str, Meaning)| *meaning == Meaning::Library(self);
        GLOBALS.iter().find(is_it).map_or("?", |(name, _)| name)
    }

    /// The meaning of a field of the library, if Redis has it.
    pub(super) fn field(self, name: &[u8]) -> Option<Meaning> {
        match self {
            Self::Math => find(MATH, MISSING_MATH, name),
            Self::Redis => find(REDIS, MISSING_REDIS, name),
            Self::String => find(STRING, MISSING_STRING, name),
            Self::Table => find(TABLE, MISSING_TABLE, name),
        }
    }
}
