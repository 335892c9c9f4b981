//! What scripts may cost, and what is refused.

use bytes::Bytes;
use futures_util::FutureExt;

use super::fake::FakeRedis;
use super::{AtOnce, answer, answer_of, bytes, run};
use crate::{Budget, Exhausted, Halt, Host, MAX_NESTING, MAX_TEXT, Reply, RunError, Script, Turns};

/// The line and the reason why a text is no script.
#[track_caller]
fn refusal(text: &str) -> String {
    Script::parse(text.as_bytes(), |_| Ok(())).expect_err("the text is refused").to_string()
}

/// The fuel and the bytes that a script used, which it may exhaust.
fn cost(text: &str, argument: &[u8]) -> (u64, u64) {
    let budget = Budget::new(1_000_000, 10_000_000);
    let (fuel, memory) = budget.rest();
    let mut after = budget;
    let script = Script::parse(text.as_bytes(), |_| Ok(())).unwrap();
    let arguments = [Bytes::copy_from_slice(argument)];
    let _ = run(&script, &[], &arguments, &mut FakeRedis::default(), &mut after);
    (fuel - after.rest().0, memory - after.rest().1)
}

#[test]
fn what_only_redis_has_is_refused_by_name_and_line() {
    for (text, reason) in [
        ("local a = 1\nreturn cjson.encode({})", "2: cjson is not supported here"),
        ("return cmsgpack.pack(1)", "1: cmsgpack is not supported here"),
        ("return bit.band(1, 2)", "1: bit is not supported here"),
        ("return struct.pack('i', 1)", "1: struct is not supported here"),
        ("return os.time()", "1: os is not supported here"),
        ("return setmetatable({}, {})", "1: setmetatable is not supported here"),
        ("if false then\n\nloadstring('x') end", "3: loadstring is not supported here"),
        ("return string.gsub('a', 'b', 'c')", "1: string.gsub is not supported here"),
        ("local a = ARGV[1]:match('%d+')", "1: the method match is not supported here"),
        ("table.sort(KEYS)", "1: table.sort is not supported here"),
        ("return math.random()", "1: math.random is not supported here"),
        ("return redis.sha1hex('')", "1: redis.sha1hex is not supported here"),
        ("redis.set_repl(1)", "1: redis.set_repl is not supported here"),
        ("#!lua\nreturn 1", "1: a line with #! is not supported here"),
    ] {
        assert_eq!(refusal(text), format!("user_script:{reason}"));
    }
    assert_eq!(answer(b"local cjson = {encode = tostring} return cjson.encode(1)"), "\"1\"");
}

/// A stranger's script once kept all others from their turns for 5 ms.
#[test]
fn a_script_lets_others_go_on_after_each_twentieth_thousandth_step() {
    let turns_of = |text: &str| {
        let (script, mut turns) = (Script::parse(text.as_bytes(), |_| Ok(())).unwrap(), AtOnce::default());
        let (mut redis, mut budget) = (FakeRedis::default(), Budget::of_request());
        let run = crate::run(&script, &[], &[], &mut redis, &mut budget, &mut turns);
        let result = run.now_or_never().unwrap();
        (turns.0, result)
    };
    assert_eq!(turns_of("for i = 1, 500 do local x = i end return 1"), (0, Ok(Reply::Integer(1))));
    assert_eq!(
        turns_of("while true do end"),
        (9, Err(RunError::Halted(1, Halt::Exhausted(Exhausted::Fuel))))
    );
    let caught = "return pcall(function() while true do redis.call('nothing') end end)";
    assert!(turns_of(caught).0 <= 9);
    // The search is one step, of 50,000.
    let long = "return ('x'):rep(4e5):find('y')";
    assert_eq!(turns_of(long), (3, Ok(Reply::Null)));
    // A table is moved in one pass. That once took a whole turn.
    let many = "local t = {} for i = 1, 8000 do t[i] = i end ";
    let moves = "table.insert(t, 1, 1) table.remove(t, 1)";
    assert!(cost(&format!("{many}{moves}"), b"").0 - cost(many, b"").0 < 4_000);
}

#[test]
fn texts_are_bounded() {
    for nested in ["(", "{", "not ", "- ", "2 ^ ", "f(", "t[", "function() return ", "1 .. (", "{{x = "] {
        let text = format!("return {}", nested.repeat(MAX_TEXT / nested.len() / 2));
        assert!(refusal(&text).ends_with("is nested more than 100 levels deep"), "{nested}");
    }
    for nested in ["do ", "if 1 then ", "while 1 do ", "repeat ", "for i = 1, 2 do ", "local function f() "] {
        assert!(refusal(&nested.repeat(2_000)).ends_with("is nested more than 100 levels deep"), "{nested}");
    }
    let deep = format!("return {}1{}", "(".repeat(98), ")".repeat(98));
    assert_eq!(answer(deep.as_bytes()), "1");
    let names: Vec<String> = (0..201).map(|number| format!("a{number}")).collect();
    assert!(refusal(&format!("local {}", names.join(","))).ends_with("more than 200 local variables"));
    assert!(refusal(&format!("f({}1)", "1,".repeat(1_000))).ends_with("more than 1000 values at once"));
    assert!(refusal(&format!("a{} = 1", ",a".repeat(100))).ends_with("variables are assigned at once"));
    let uses =
        format!("local {} local function f() return {} end", names[..61].join(","), names[..61].join("+"));
    assert!(refusal(&uses).ends_with("uses more than 60 variables of outer functions"));
    // Each of these takes as long as 200 other bytes. Once, 64 KiB of them took 20 ms.
    let hard = "x = 2.4703282292062327208e-324 ";
    for (most, spaces) in [(4, 0), (22, 3_000)] {
        let text = |count| format!("local x {}{}", hard.repeat(count), " ".repeat(spaces));
        assert!(refusal(&text(most + 3)).ends_with("take too long to read"), "{most}");
        assert!(Script::parse(text(most).as_bytes(), |_| Ok(())).is_ok(), "{most}");
    }
    assert!(refusal(&" ".repeat(MAX_TEXT + 1)).ends_with("is longer than 65536 bytes"));
    assert!(Script::parse(" ".repeat(MAX_TEXT).as_bytes(), |_| Ok(())).is_ok());
}

#[test]
fn a_script_takes_memory_by_its_length() {
    for unit in ["f()", "f''", "a=1 ", "a.b=1 ", "f{}", "do end ", "(function()end)()", "if 1 then end "] {
        for count in [100, MAX_TEXT / unit.len() - 10] {
            let text = format!("local f {}", unit.repeat(count));
            let size = Script::parse(text.as_bytes(), |_| Ok(())).unwrap().size();
            assert!(size <= 1_024 + 20 * text.len(), "{unit}: {size} for {}", text.len());
        }
    }
}

/// A pass over a long string, or over many items, costs by their number.
#[test]
fn what_is_long_is_paid_for() {
    let many = "local t = {} for i = 1, #ARGV[1] do t[i] = 1 end ";
    for (script, least) in [
        ("return ARGV[1] .. 'x'", 1_000),
        ("local s = ARGV[1]:sub(1, -2) .. ARGV[1]:sub(-1) return s == ARGV[1]", 3_000),
        ("local s = ARGV[1]:sub(1, -2) .. ARGV[1]:sub(-1) return s < ARGV[1]", 3_000),
        ("local t = {} t[ARGV[1]] = 1", 1_000),
        ("return ({})[ARGV[1]]", 1_000),
        ("return ARGV[1] + 1", 1_000),
        ("return tonumber(ARGV[1], 16)", 1_000),
        ("return ARGV[1]:upper()", 1_000),
        ("return ARGV[1]:reverse()", 1_000),
        ("return ARGV[1]:find('y')", 1_000),
        ("return ('x'):find(ARGV[1])", 8_000),
        ("return string.format(ARGV[1])", 1_000),
        ("return string.format('%s', ARGV[1])", 1_000),
        ("return ARGV[1]:rep(2)", 1_000),
        ("return table.concat({ARGV[1], ARGV[1]})", 2_000),
        ("return pcall(error, ARGV[1])", 1_000),
        ("return redis.error_reply(ARGV[1])", 1_000),
        ("error(ARGV[1])", 1_000),
        ("return string.rep('x', #ARGV[1])", 1_000),
    ] {
        let (short, long) = (cost(script, &[b'1'; 3_200]).0, cost(script, &[b'1'; 35_200]).0);
        assert!(long - short >= least, "{script}: {short} and {long}");
    }
    for script in [
        "t[#t] = nil for i = 1, 10 do table.insert(t, 1, i) end",
        "for i = 1, 10 do table.remove(t, 1) end",
        "for i = 1, 10 do local a = table.concat(t) end",
        "for i = 1, 10 do local a = {unpack(t)} end",
        "for i = 1, 10 do select('#', unpack(t)) end",
        "for i = 1, 10 do (function(...) return ... end)(unpack(t)) end",
        "for i = 1, 10 do (function(a, ...) end)(unpack(t)) end",
        "for i = 1, 10 do math.max(unpack(t)) end",
        "for i = 1, 10 do redis.call('get', unpack(t)) end",
        "local e = {err = 'x'} for i = 1, #t do t[i] = e end return t",
        "for i = 1, #t do t[i] = {} end return t",
        "for i = 1, 10 do string.char(unpack(t)) end",
        "for i = 1, 10 do string.byte(ARGV[1], 1, -1) end",
    ] {
        let of = |items: usize| {
            let argument = vec![b'1'; items];
            cost(&format!("{many}{script}"), &argument).0 - cost(many, &argument).0
        };
        let (few, more) = (of(200), of(2_200));
        assert!(more - few >= 2_000, "{script}: {few} and {more}");
    }
}

/// A copy of a value costs a step. It once cost less, and long strings have a counter that each copy and each drop changes.
#[test]
fn each_copy_is_paid_for() {
    let names: Vec<String> = (0..58).map(|number| format!("a{number}")).collect();
    let names = names.join(",");
    let closure = format!("local {names} for i = 1, 100 do local f = function() return {names} end end");
    let of = |script: &str| {
        let many = "local t = {} for i = 1, 1000 do t[i] = i end";
        cost(&format!("{many} (function(...) {script} end)(unpack(t))"), b"").0
    };
    for (script, copies) in [
        (&closure[..], 5_800),
        ("for i = 1, 100 do math.abs(1, ...) end", 100_000),
        ("for i = 1, 100 do assert(...) end", 200_000),
        ("for i = 1, 100 do select(1, ...) end", 200_000),
        ("for i = 1, 100 do local t = {...} end", 100_000),
    ] {
        let fuel = of(script) - of("");
        assert!(fuel >= copies, "{script}: {fuel}");
    }
}

/// The digits of a number with a large exponent are those of long arithmetic. Such a number once cost what any other does.
#[test]
fn hard_numbers_are_paid_for() {
    let hard = format!("2.{}e-324", "47032822920623272088".repeat(35));
    for (script, argument, least) in [
        ("local n = tonumber(ARGV[1])", &hard[..], 8_000),
        ("local n = ARGV[1] * 2", &hard, 8_000),
        ("local n = tonumber(ARGV[1])", "2.4703282292062327208e-324", 500),
        ("return string.format('%99.99f', 1.7e308)", "", 6_000),
        ("return string.format('%.99g', 5e-324)", "", 1_500),
        ("return tostring(1.7e308)", "", 200),
        ("return table.concat({5e-324})", "", 200),
        ("redis.call('get', 1.7e308)", "", 250),
    ] {
        let (fuel, _) = cost(script, argument.as_bytes());
        assert!(fuel >= least, "{script}: {fuel}");
    }
    for script in
        ["return tostring(0)", "return 12345 .. ''", "return string.format('%.2f', 1.5)", "return '42' + 1"]
    {
        assert!(cost(script, b"").0 < 100, "{script}");
    }
}

/// What is kept takes memory, of which nothing is given back.
#[test]
fn what_is_kept_is_paid_for() {
    for (script, least) in [
        ("local s = 'x' for i = 1, 10 do s = s .. s end", 1_000),
        ("for i = 1, 1000 do local t = {} end", 40_000),
        ("local t = {} for i = 1, 1000 do t[i] = i end", 40_000),
        ("local t = {} for i = 1, 1000 do t['k' .. i] = i end", 140_000),
        ("for i = 1, 1000 do local f = function() return i end end", 40_000),
        ("for i = 1, 1000 do local s = tostring(i + 0.5) end", 60_000),
        ("for i = 1, 1000 do redis.pcall('get') end", 100_000),
        ("for i = 1, 1000 do pcall(error, 'x') end", 60_000),
        ("local s = ('x'):rep(1000) for i = 1, 1000 do s:upper() end", 1_000_000),
        ("local s = ('x'):rep(1000) for i = 1, 1000 do s:sub(2) end", 1_000_000),
        ("local e = {} local t = {} for i = 1, 1000 do t[i] = e end return t", 80_000),
    ] {
        let (_, memory) = cost(script, b"");
        assert!(memory >= least, "{script}: {memory}");
    }
}

#[test]
fn a_halt_cannot_be_caught() {
    for endless in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "for i = 1, 1e300 do end",
        "while true do pcall(error) end",
        "string.rep('', 1e15) while true do string.find('aaaa', 'b') end",
    ] {
        assert_eq!(answer(endless.as_bytes()), format!("! 1: {}", Exhausted::Fuel), "{endless}");
    }
    for growing in [
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = 1 end",
        "while true do pcall(string.rep, 'x', 1e6) end",
        "pcall(string.rep, 'x', 5e6) return 1",
        "return ('x'):rep(1e6) .. ''",
    ] {
        assert_eq!(answer(growing.as_bytes()), format!("! 1: {}", Exhausted::Memory), "{growing}");
    }
}

#[test]
fn a_halt_names_the_line() {
    let (steps, memory) = (Exhausted::Fuel.to_string(), Exhausted::Memory.to_string());
    for (script, line, why) in [
        ("local x = 1\nwhile true do end", 2, &steps),
        ("local function f()\nwhile true do end end\n\nf()", 2, &steps),
        ("local s = 'x'\n\npcall(string.rep, s, 5e6)", 3, &memory),
        ("local t = {1}\nfor i = 1, 20 do t = {t, t, t, t} end\nreturn t", 3, &memory),
        ("\nerror(string.rep('x', 6e5))", 2, &memory),
    ] {
        assert_eq!(answer(script.as_bytes()), format!("! {line}: {why}"), "{script}");
    }
}

#[test]
fn scripts_of_one_request_share_a_budget() {
    let text = "for i = 1, 100 do end return 1";
    let script = Script::parse(text.as_bytes(), |_| Ok(())).unwrap();
    let (fuel, memory) = cost(text, b"");
    let mut budget = Budget::new(3 * fuel + fuel / 2, 4 * memory);
    let mut runs = 0;
    while run(&script, &[], &[Bytes::new()], &mut FakeRedis::default(), &mut budget).is_ok() {
        runs += 1;
    }
    assert_eq!((runs, budget.rest().0), (3, 0));
}

#[test]
fn many_nested_pcalls_cost_one_frame() {
    let many = format!("return select('#', pcall({}tostring, 1))", "pcall, ".repeat(900));
    assert_eq!(answer(many.as_bytes()), "902");
}

#[test]
fn a_wide_reply_is_bounded() {
    let wide = b"local t = {1} for i = 1, 20 do t = {t, t, t, t} end return t";
    assert_eq!(answer(wide), format!("! 1: {}", Exhausted::Memory));
}

/// A host that refuses commands, or whose answers are wrong.
struct Odd(Reply);

impl Host for Odd {
    type Refusal = &'static str;

    fn call(&mut self, _: Vec<Bytes>, _: u32, _: &mut Budget) -> Result<Reply, Halt<&'static str>> {
        match &self.0 {
            Reply::NullArray => Err(Halt::refused("on purpose")),
            reply => Ok(reply.clone()),
        }
    }
}

fn odd(reply: Reply, text: &str) -> Result<Reply, RunError<&'static str>> {
    let script = Script::parse(text.as_bytes(), |_| Ok(())).unwrap();
    run(&script, &[], &[], &mut Odd(reply), &mut Budget::of_request())
}

#[test]
fn the_host_halts_a_script() {
    let text = "pcall(redis.call, 'x') redis.pcall('y') return 1";
    assert_eq!(odd(Reply::NullArray, text), Err(RunError::Halted(1, Halt::refused("on purpose"))));
    let mut nested = Reply::Integer(1);
    for _ in 0..MAX_NESTING + 1 {
        nested = Reply::Array(vec![nested]);
    }
    for text in ["return redis.call('x')", "return pcall(redis.pcall, 'x')"] {
        assert!(
            matches!(odd(nested.clone(), text), Err(RunError::Halted(_, Halt::Unsupported(_)))),
            "{text}"
        );
    }
}

/// Turns that do not come.
struct NoTurns;

impl Turns<&'static str> for NoTurns {
    async fn next(&mut self, _: &Budget) -> Result<(), &'static str> {
        Err("no room")
    }
}

#[test]
fn a_script_without_another_turn_is_stopped() {
    let script = Script::parse(b"\npcall(function() while true do end end)", |_| Ok(())).unwrap();
    let (mut host, mut budget, mut turns) = (Odd(Reply::OK), Budget::of_request(), NoTurns);
    let run = crate::run(&script, &[], &[], &mut host, &mut budget, &mut turns);
    let stopped = RunError::Halted(2, Halt::NoTurn(Box::new("no room")));
    assert_eq!(run.now_or_never().unwrap(), Err(stopped));
}

#[test]
fn replies_of_the_new_protocol_become_values() {
    let pair = |value| Reply::Map(vec![(Reply::bulk("a"), value)]);
    let flat = Reply::Array(vec![Reply::bulk("a"), Reply::Integer(1)]);
    assert_eq!(odd(pair(Reply::Bool(true)), "return redis.call('x')"), Ok(flat));
    let text = "redis.setresp(3) return redis.call('x').map.a";
    assert_eq!(odd(pair(Reply::Bool(true)), text), Ok(Reply::Bool(true)));
    assert_eq!(
        odd(pair(Reply::Null), "redis.setresp(3) return {redis.call('x').map.a == nil}"),
        Ok(Reply::Array(vec![Reply::Bool(true)]))
    );
}

#[test]
fn keys_follow_in_the_order_of_their_insertion() {
    let text = "local t, order = {z = 1, 10, y = 2, 20}, {} t.x = 3 t.z = nil t[3] = 30 t.z = 4
        for k in pairs(t) do order[#order + 1] = tostring(k) end return table.concat(order, ' ')";
    assert_eq!(answer(text.as_bytes()), "\"1 2 3 z y x\"");
}

#[test]
fn other_runs_see_nothing() {
    let mut host = FakeRedis::default();
    let script = b"local t = KEYS t[1] = 'changed' local s = redis local u = s.call return KEYS[1]";
    for _ in 0..2 {
        assert_eq!(answer_of(script, &["a"], &[], &mut host), "\"changed\"");
    }
    assert_eq!(answer_of(b"return KEYS[1]", &["a"], &[], &mut host), "\"a\"");
    assert_eq!(bytes(&["a"])[0], "a");
}
