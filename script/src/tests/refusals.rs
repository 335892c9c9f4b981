//! What Redis would do and is not supported here ends the script, and no `pcall` catches it.

use super::answer;

#[track_caller]
fn check(refused: &[(&str, &str)]) {
    for (script, reason) in refused {
        let expected = format!("! {reason}");
        assert_eq!(answer(script.as_bytes()), expected, "{script}");
        let caught = format!("pcall(function() {script} end) return 'caught'");
        assert_eq!(answer(caught.as_bytes()), expected, "{caught}");
    }
}

#[test]
fn what_only_redis_does_ends_a_script() {
    check(&[
        ("return string.find('a', '%d')", "1: a pattern in string.find is not supported here"),
        ("return ARGV[1]:find('^o')", "1: a pattern in string.find is not supported here"),
        ("return pcall(string.find, 'a', '.')", "1: a pattern in string.find is not supported here"),
        ("local m = 'gsub' return string[m]", "1: string.gsub is not supported here"),
        ("return ('x')['mat' .. 'ch']", "1: string.match is not supported here"),
        ("local t = table return t['sort']", "1: table.sort is not supported here"),
        ("return redis['sha1' .. 'hex']('')", "1: redis.sha1hex is not supported here"),
        ("local m = math return m.sqrt(4)", "1: math.sqrt is not supported here"),
        ("for k in pairs(redis) do end", "1: the table redis as an argument is not supported here"),
        (
            "table.insert({x = 1}, -2147483648, 1)",
            "1: table.insert at a position below 1 is not supported here",
        ),
        ("return next(string)", "1: the table string as an argument is not supported here"),
    ]);
    for format in ["%e", "%5.2E", "%G", "%o", "%q"] {
        let letter = format.trim_start_matches(|other: char| !other.is_ascii_alphabetic());
        let reason = format!("1: %{letter} in string.format is not supported here");
        check(&[(&format!("return string.format('{format}', 1)"), &reason)]);
    }
    for format in ["%#x", "%-#5d", "%#s", "%#.3f"] {
        let reason = "1: the flag # in string.format is not supported here";
        check(&[(&format!("return string.format('{format}', 1)"), reason)]);
    }
}

/// Redis allows hundreds of levels.
#[test]
fn what_is_nested_too_deep_ends_a_script() {
    let calls = "1: a nesting of more than 64 calls is not supported here";
    check(&[
        ("local function f(n) return f(n + 1) end return f(1)", calls),
        ("local function f(n) return 1 + f(n + 1) end return f(1)", calls),
        ("local function f() return pcall(f) end return f()", calls),
    ]);
    assert_eq!(
        answer(b"local function f(n) if n > 1 then return f(n - 1) end return n end return f(63)"),
        "1"
    );
    for script in [
        "local t = {} t[1] = t return t",
        "local a, b = {}, {} a[1] = b b[1] = a return {a, 5}",
        "local t = {} for i = 2, 33 do t = {t} end return t",
    ] {
        assert_eq!(
            answer(script.as_bytes()),
            "! 1: a reply that is nested more than 32 levels deep is not supported here"
        );
    }
    assert!(answer(b"local t = {} for i = 2, 32 do t = {t} end return t").starts_with("[[[["));
    assert_eq!(answer(b"return {double = 1}"), "! 1: a reply with the field double is not supported here");
}

/// In Lua 5.1, a function with `...` has a variable `arg`.
#[test]
fn arg_is_refused_where_it_is_a_variable() {
    let refused = "-ERR Error compiling script (new function): user_script:1: arg in a function with '...' is not supported here";
    for script in [
        "local function f(...) return arg[1] end return f(5)",
        "local arg = {7} local function f(...) return arg[1] end return f(5)",
        "local function f(...) return function() return arg end end return 1",
        "return (function(...) arg = 1 end)()",
        "return (function(arg, ...) return arg end)(1)",
    ] {
        assert_eq!(answer(script.as_bytes()), refused, "{script}");
    }
}
