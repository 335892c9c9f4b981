//! Programs drawn from bytes. Every sequence of bytes makes a program, and a shorter one makes a smaller program.
//!
//! The programs end, and their strings and tables stay small. They do not depend on the order of the keys of a table, nor on whether
//! a variable is read before a call that sets it. Some take the length of a table that may have holes. They have no zero: Lua 5.1 takes
//! `-0` and `0` for one constant.

use std::fmt::Write as _;

/// The beginning of every program.
const PRELUDE: &str = "
local function str(v) if type(v) == 'table' or type(v) == 'function' then return type(v) end return tostring(v) end
local function clip(v) if type(v) == 'string' then return v:sub(1, 30) end return v end
local function num(v) local n = tonumber(v) if n and n == n and n < 1e15 and n > -1e15 then return n end return 2 end
local function int(v) return math.floor(num(v)) % 7 - 2 end
local function some(v) if v == nil then return 0 end return v end
local a, b, c = 1, 'x', nil
local t, u = {1, 2, 'three'}, {x = 1}
local function f(p, q) return q, p end
local function g(...) return select('#', ...), ... end
";

/// Statements. `$` stands for an expression, and `@` for a block.
const SIMPLE: &[&str] = &[
    "a = clip($)",
    "b = clip($)",
    "c = clip($)",
    "a, b = clip($), clip($)",
    "a, b, c = f($, $)",
    "t[#t + 1] = some(clip($))",
    "u.x = clip($)",
    "u[int($)] = clip($)",
    "t, u = {some(clip($)), some(clip($))}, {x = clip($), [int($)] = clip($)}",
    "table.insert(t, some(clip($)))",
    "table.insert(t, 1, some(clip($)))",
    "a = table.remove(t, int($))",
    "table.remove(t)",
    "f = function(p, q) return clip(p), clip($), a end",
    "f = function(...) local p, q = clip($), ... return p, q, ... end",
    "redis.call('set', KEYS[1], str($), 'PX', 100000)",
    "a = redis.call('get', KEYS[1])",
    "b = pcall(function() a = clip($) error('x') end)",
    "b = select(2, pcall(error, str($)))",
    "local a = clip($)",
    "local b, c = clip($), f($)",
    "a = (function(...) return select('#', ...) end)($, f($, $))",
    "b = pcall(assert, $, 'failed')",
    "c = clip(table.concat({str($), num($), str($)}, str($), 1, 2))",
];

/// Statements with blocks.
const NESTED: &[&str] = &[
    "if $ then @ end",
    "if $ then @ else @ end",
    "if $ then @ elseif $ then @ else @ end",
    "do @ end",
    "for i = int($), int($) do local a = i @ end",
    "for i = 3, int($), -1 do @ c = i end",
    "for i, v in ipairs({some($), some($)}) do a = clip(v) @ end",
    "for k, v in pairs(t) do b = clip(v) @ break end",
    "do local n = 0 for k, v in pairs(u) do n = n + 1 end a = n end",
    "for i = 1, 3 do @ if $ then break end @ end",
    "do local p, q = clip($), 0 f = function() q = q + 1 p = clip(q) return p, q end @ end",
    "for i = 1, 2 do local p = i local old = f f = function(x) if x == 1 then return p end return old(1, p) end end",
    "function u.m(self, p) @ return clip($), p end a = u:m(clip($))",
    "c = pcall(function() @ return $ end)",
    "do local p = function(x) @ return clip(x), 2 end a, b = p($) end",
];

/// Expressions.
const PLAIN: &[&str] = &[
    "1",
    "a",
    "b",
    "c",
    "nil",
    "true",
    "false",
    "#''",
    "2",
    "-1",
    "3.5",
    "10",
    "1e15",
    "0.1",
    "1e100",
    "'10'",
    "'abc'",
    "''",
    "' 7 '",
    "'0x10'",
    "\"a\\nb\"",
    "[[long]]",
    "#t",
    "t[1]",
    "t[2]",
    "u.x",
    "KEYS[1]",
    "ARGV[2]",
    "ARGV[3]",
    "redis.call('exists', KEYS[1])",
    "{}",
    "f",
    "u",
    "t",
];

/// Expressions with expressions in them.
const COMPOUND: &[&str] = &[
    "($ + $)",
    "(num($) - num($))",
    "(num($) * num($))",
    "(num($) / num($))",
    "(num($) % num($))",
    "(num($) ^ int($))",
    "num($) + num($) * num($) - num($)",
    "- num($)",
    "(num($) + num($) / 4)",
    "not $",
    "($ == $)",
    "($ ~= $)",
    "($ < $)",
    "(num($) <= num($))",
    "(str($) > str($))",
    "(num($) >= num($))",
    "(num($) < num($))",
    "(str($) < str($))",
    "$ and $",
    "$ or $",
    "($ and $ or $)",
    "(str($) .. $)",
    "(str($) .. num($) .. str($))",
    "($)",
    "t[int($)]",
    "u[ $ ]",
    "({$, $})[int($)]",
    "({x = $, $}).x",
    "#str($)",
    "f($, $)",
    "(f($, $))",
    "g($, f($, $))",
    "(select(2, g($, $)))",
    "f(f($), $)",
    "str($):sub(int($), int($))",
    "str($):upper()",
    "str($):reverse():lower()",
    "str($):rep(2)",
    "(str($):byte(int($)))",
    "(string.find(str($), str($), 1, true))",
    "(string.find(str($), str($), int($), true))",
    "string.format('%s|%5.2f|%d', str($), num($), int($))",
    "string.format('%g,%x,%-6s|%06.1f', num($), int($) + 2, str($), num($))",
    "string.format('%.3g %5d %+d %.2s', num($), int($), int($), str($))",
    "tostring(num($))",
    "tonumber($)",
    "tonumber(str($), 16)",
    "math.floor(num($))",
    "math.ceil(num($))",
    "math.max(num($), num($))",
    "math.min(num($), num($), num($))",
    "math.abs(num($))",
    "math.fmod(num($), 3)",
    "type($)",
    "(pcall(f, $))",
    "(pcall(function() return $ end))",
    "select('#', f($), f($, $))",
    "(unpack({$, $}, 1, 2))",
    "select('#', unpack({$, $}, 1, int($)))",
    "#{some($), some($)}",
    "#{g($, $), 1}",
    "#{$, $}",
    "#{f($, $)}",
    "select('#', unpack({$, $}))",
    "(pcall(table.insert, {$, $}, some($)))",
    "(next({$}))",
    "string.char(65 + int($) + 2)",
    "{some(clip($)), x = clip($)}",
    "redis.pcall('get')",
    "(redis.pcall('get', str($)) or 0)",
    "redis.status_reply(str($)).ok",
    "(function() return $ end)()",
    "(function(p, ...) return ... end)($, $)",
];

/// The program that these bytes mean.
pub(super) fn program(bytes: &[u8]) -> String {
    let mut writer = Writer { bytes, text: PRELUDE.to_owned(), loops: 0, is_in_f: false };
    while !writer.bytes.is_empty() {
        writer.statement(3);
    }
    writer.text +=
        "return {str(a), str(b), str(c), #t, str(t[1]), str(u.x), str(u[1]), str(f(1, 2)), str(g(a, b))}\n";
    writer.text
}

struct Writer<'a> {
    bytes: &'a [u8],
    text: String,
    loops: usize,
    /// Whether this is in a new body of `f`, which must not call itself: it might never end.
    is_in_f: bool,
}

impl Writer<'_> {
    /// A number below `count`; 0 when all bytes are used.
    fn pick(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % count
    }

    fn one_of(&mut self, texts: &[&'static str]) -> &'static str {
        texts[self.pick(texts.len())]
    }

    /// Writes a text in which `$` stands for an expression, and `@` for a block.
    fn write(&mut self, template: &str, depth: usize) {
        for part in template.split_inclusive(['$', '@']) {
            match part.as_bytes() {
                [.., b'$'] => {
                    self.text += &part[..part.len() - 1];
                    self.expression(depth.saturating_sub(1));
                }
                [.., b'@'] => {
                    self.text += &part[..part.len() - 1];
                    self.block(depth.saturating_sub(1));
                }
                _ => self.text += part,
            }
        }
    }

    fn block(&mut self, depth: usize) {
        for _ in 0..self.pick(3) {
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: usize) {
        match self.pick(3) {
            2 if depth > 0 => match self.pick(8) {
                0 => self.counted_loop(depth),
                _ => {
                    let template = self.one_of(NESTED);
                    self.write(template, depth);
                }
            },
            _ => {
                let template = self.one_of(SIMPLE);
                self.is_in_f = template.starts_with("f =");
                self.write(template, depth.max(1) + 1);
                self.is_in_f = false;
            }
        }
        self.text += "\n";
    }

    fn counted_loop(&mut self, depth: usize) {
        self.loops += 1;
        let counter = format!("n{}", self.loops);
        let _ = write!(self.text, "do local {counter} = 0 ");
        let (start, end) = match self.pick(2) {
            0 => (format!("while {counter} < 3 and ($) do {counter} = {counter} + 1 @ "), "end".to_owned()),
            _ => (
                format!("repeat local done = $ {counter} = {counter} + 1 @ "),
                format!("until done or {counter} > 2"),
            ),
        };
        self.write(&(start + &end + " end"), depth);
    }

    fn expression(&mut self, depth: usize) {
        let chosen = match self.pick(3) {
            0 => self.one_of(PLAIN),
            _ if depth == 0 => self.one_of(PLAIN),
            _ => self.one_of(COMPOUND),
        };
        let calls_f = chosen == "f" || ["f(", "(f", " f("].iter().any(|call| chosen.contains(call));
        self.write(if calls_f && self.is_in_f { "a" } else { chosen }, depth);
    }
}
