//! Scripts that do what those of lock libraries do, written anew, over a tiny Redis.

use super::answer_of;
use super::fake::FakeRedis;

/// Deletes a key that has this value.
const RELEASE: &str = r#"
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
else
    return 0
end"#;

/// Sets all keys if all are free. Otherwise answers which are not.
const ACQUIRE_ALL: &str = "
local taken = {}
for i, key in ipairs(KEYS) do
  if redis.call('exists', key) == 1 then
    taken[#taken + 1] = key
  end
end
if #taken > 0 then return taken end
for _, key in ipairs(KEYS) do
  redis.call('set', key, ARGV[1], 'PX', tonumber(ARGV[2]))
end
return #KEYS";

/// Deletes those of the keys that have this value, and counts them.
const RELEASE_ALL: &str = r#"
local count = 0
for i = 1, #KEYS do
    if redis.call("get", KEYS[i]) == ARGV[1] then
        redis.pcall("del", KEYS[i])
        count = count + 1
    end
end
return count"#;

/// Sets a key that is free, or renews it for its holder. Otherwise answers how much time the holder has left.
const ACQUIRE_OR_RENEW: &str = "
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.status_reply('ACQUIRED')
elseif redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {ok = 'RENEWED'}
end
return redis.call('PTTL', KEYS[1])";

/// Renews all keys or none, with functions.
const RENEW_ALL: &str = "
local value, ms = ARGV[1], ARGV[2]
local function every(test)
  for _, key in ipairs(KEYS) do
    if not test(key) then return false end
  end
  return true
end
local function is_own(key) return redis.call('get', key) == value end
local function renew(key) return redis.call('pexpire', key, ms) == 1 end
return every(is_own) and every(renew)";

/// Fails with a reason.
const RELEASE_OR_FAIL: &str = "
local current = redis.call('get', KEYS[1])
if current == false then return redis.error_reply('NOTFOUND no lock ' .. KEYS[1]) end
if current ~= ARGV[1] then return {err = 'NOTOWNER the lock is of ' .. current:sub(1, 3) .. '...'} end
return {'released', redis.call('unlink', KEYS[1])}";

/// Takes the first of several slots that is free: a semaphore.
const ACQUIRE_SLOT: &str = "
local limit, slot = tonumber(ARGV[1]), 0
repeat
  slot = slot + 1
  if slot > limit then return nil end
  local name = string.format('%s:%d', KEYS[1], slot)
until redis.call('set', name, ARGV[2], 'nx', 'px', ARGV[3])
return slot";

/// Takes the key from a holder whose number is smaller.
const TAKE_FROM_SMALLER: &str = "
local current = tonumber(redis.call('get', KEYS[1]) or '0')
local mine = tonumber(ARGV[1])
if not mine then error('a number is needed', 0) end
if current >= mine then
  return {0, tostring(current)}
end
redis.call('set', KEYS[1], mine, 'px', 1000)
return {1, tostring(mine)}";

/// Runs scripts one after the other over one Redis.
struct Story(FakeRedis);

impl Story {
    fn new() -> Self {
        Self(FakeRedis::default())
    }

    #[track_caller]
    fn play(&mut self, script: &str, keys: &[&str], arguments: &[&str], expected: &str) {
        assert_eq!(answer_of(script.as_bytes(), keys, arguments, &mut self.0), expected);
    }

    #[track_caller]
    fn lock(&mut self, key: &str, value: &str, ms: &str) {
        self.play(
            "return redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2])",
            &[key],
            &[value, ms],
            "+OK",
        );
    }

    #[track_caller]
    fn has(&mut self, key: &str, value: &str, ms: i64) {
        let expected = format!("[{value}, {ms}]");
        self.play("return {redis.call('get', KEYS[1]), redis.call('pttl', KEYS[1])}", &[key], &[], &expected);
    }
}

#[test]
fn several_keys_are_acquired_and_renewed_all_or_none() {
    let mut story = Story::new();
    story.play(ACQUIRE_ALL, &["a", "b", "c"], &["me", "1000"], "3");
    story.play(ACQUIRE_ALL, &["d", "b", "c"], &["other", "1000"], "[\"b\", \"c\"]");
    story.has("d", "nil", -2);
    story.play(RENEW_ALL, &["a", "b", "c"], &["me", "5000"], "1");
    story.has("b", "\"me\"", 5_000);
    story.lock("d", "other", "1000");
    story.play(RENEW_ALL, &["a", "d"], &["me", "9000"], "nil");
    story.has("a", "\"me\"", 5_000);
    story.play(RELEASE_ALL, &["a", "b", "c", "d"], &["me"], "3");
    story.has("d", "\"other\"", 1_000);
}

#[test]
fn a_holder_acquires_again_and_others_learn_how_long_to_wait() {
    let mut story = Story::new();
    story.play(ACQUIRE_OR_RENEW, &["lock"], &["me", "1000"], "+ACQUIRED");
    story.0.now_ms += 100;
    story.play(ACQUIRE_OR_RENEW, &["lock"], &["other", "1000"], "900");
    story.play(ACQUIRE_OR_RENEW, &["lock"], &["me", "1000"], "+RENEWED");
    story.has("lock", "\"me\"", 1_000);
}

#[test]
fn errors_have_the_code_of_the_script() {
    let mut story = Story::new();
    story.play(RELEASE_OR_FAIL, &["lock"], &["me"], "-NOTFOUND no lock lock");
    story.lock("lock", "somebody", "1000");
    story.play(RELEASE_OR_FAIL, &["lock"], &["me"], "-NOTOWNER the lock is of som...");
    story.play(RELEASE_OR_FAIL, &["lock"], &["somebody"], "[\"released\", 1]");
}

#[test]
fn slots_are_taken_in_order_until_none_is_free() {
    let mut story = Story::new();
    for (value, expected) in [("a", "1"), ("b", "2"), ("c", "nil")] {
        story.play(ACQUIRE_SLOT, &["room"], &["2", value, "1000"], expected);
    }
    story.play(RELEASE, &["room:1"], &["a"], "1");
    story.play(ACQUIRE_SLOT, &["room"], &["2", "c", "1000"], "1");
}

#[test]
fn numbers_are_compared_as_numbers() {
    let mut story = Story::new();
    story.play(TAKE_FROM_SMALLER, &["lock"], &["9"], "[1, \"9\"]");
    story.play(TAKE_FROM_SMALLER, &["lock"], &["10"], "[1, \"10\"]");
    story.play(TAKE_FROM_SMALLER, &["lock"], &["9"], "[0, \"10\"]");
    story.has("lock", "\"10\"", 1_000);
    story.play(TAKE_FROM_SMALLER, &["lock"], &["x"], "-ERR a number is needed");
}
