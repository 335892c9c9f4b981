-- The guard rule of Ringfence for Redis 5 and later (tested with 7.0): runs one command unless the token is stale.
--
--   EVALSHA <sha> 2 guard:{orders/42} {orders/42}:total 7 7 SET {orders/42}:total 99 EX 60
--
--   KEYS[1]     the number                        guard:{orders/42}
--   KEYS[2…]    the names that the command uses   {orders/42}:total
--   ARGV[1, 2]  the token and the fence           7 7
--   ARGV[3…]    the command                       SET {orders/42}:total 99 EX 60
--
-- Any command allowed in scripts, of at most 7,000 words: one is a name of KEYS[2…], none is that of the number. So FLUSHDB, which
-- would take all numbers along, is refused. Without a command the call is a touch: make it before the first read. For several
-- commands in one transaction, see guard/README.md. An ACL must allow GET, PTTL, SET and PERSIST of the number, too.
--
-- The fence is the one that the grant or the last renewal gave for the key; of an exclusive lease it is the token.
-- Answers {1, number, the command's answer}, or {0, number, nil}: nothing was done, and every token below the number
-- is dead.
-- After an error reply the command was not done. (The number may have been raised to the fence, which is harmless.)
--
-- Braces mark a name's hash tag: the number and all names that the command uses must be in one slot of a Redis Cluster. A name
-- without braces is its own tag, so guard:{orders/42} also guards the name orders/42.
--
-- Read the number with GET; absent, nobody has shown a token yet. An operator resets it with SET, to the fence that the
-- cluster gives for the key. It must never expire (an accepted call removes its TTL) or be evicted: `maxmemory-policy` noeviction or
-- volatile-*. Touch and read at the master. Where Ringfence's mirror is in the same Redis, its prefix must not be `guard`: it
-- would replace the numbers.
--
-- Numbers are doubles here, exact below 2^53, as all tokens are. The stored value is the text of the argument, because Lua would
-- write 9.007199254741e+15.

-- Lua's stack has room for 8,000 values, a few of which are in use.
local MOST_WORDS = 7000

local function number(text)
  local value = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return value and value < 9007199254740992 and value
end

-- Why the command is refused, if it is. One that uses no names, such as FLUSHDB, could destroy any number.
local function refusal()
  if #ARGV - 2 > MOST_WORDS then
    return 'the command has more than ' .. MOST_WORDS .. ' words'
  end
  local used, uses_one = {}, false
  for i = 2, #KEYS do
    used[KEYS[i]] = true
  end
  for i = 4, #ARGV do
    if ARGV[i] == KEYS[1] then
      return 'the command uses the number itself'
    end
    uses_one = uses_one or used[ARGV[i]]
  end
  return not uses_one and 'the command uses none of the names after the number'
end

local token, fence = number(ARGV[1] or ''), number(ARGV[2] or '')
if not token then
  return redis.error_reply('ERR ringfence: the token is no number from 1 to 2^53 - 1')
elseif not fence or fence > token then
  return redis.error_reply('ERR ringfence: the fence is no number from 1 to the token')
end
local refused = #ARGV > 2 and refusal()
if refused then
  return redis.error_reply('ERR ringfence: ' .. refused)
end

local high = 0
local stored = redis.call('GET', KEYS[1])
if stored then
  high = number(stored)
  if not high then
    return redis.error_reply('ERR ringfence: ' .. KEYS[1] .. ' holds no token; an operator has to reset it')
  end
end

if token < high then
  return {0, high, false}
end
-- First, so that the command is not done if the number cannot be raised (out of memory). SET also ends a time to live.
if fence > high then
  redis.call('SET', KEYS[1], ARGV[2])
  high = fence
elseif redis.call('PTTL', KEYS[1]) >= 0 then
  redis.call('SET', KEYS[1], stored)
end
if #ARGV == 2 then
  -- A write, which a replica refuses: a touch there would shut out nobody. Before a command it would be harmful: after its first
  -- write, a script may use more memory than there is.
  redis.call('PERSIST', KEYS[1])
  return {1, high, false}
end
return {1, high, redis.call(unpack(ARGV, 3))}
