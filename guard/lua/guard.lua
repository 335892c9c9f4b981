-- The guard rule of Ringfence for Redis 5 and later (tested with 7.0): runs one command unless the token is stale.
--
--   EVALSHA <sha> 2 guard:{orders/42} {orders/42}:total 7 7 SET {orders/42}:total 99 EX 60
--
--   KEYS[1]     the number                        guard:{orders/42}
--   KEYS[2…]    the names that the command uses   {orders/42}:total
--   ARGV[1, 2]  the token and the fence           7 7
--   ARGV[3…]    the command                       SET {orders/42}:total 99 EX 60
--
-- Any command allowed in scripts. Without a command the call is a touch: make it before the first read.
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
-- cluster gives for the key. It must never expire or be evicted: no TTL, and `maxmemory-policy` noeviction or volatile-*.
--
-- Numbers are doubles here, exact below 2^53, as all tokens are. The stored value is the text of the argument, because Lua would
-- write 9.007199254741e+15.

local function number(text)
  local value = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return value and value < 9007199254740992 and value
end

local token, fence = number(ARGV[1] or ''), number(ARGV[2] or '')
if not token then
  return redis.error_reply('ERR ringfence: the token is no number from 1 to 2^53 - 1')
elseif not fence or fence > token then
  return redis.error_reply('ERR ringfence: the fence is no number from 1 to the token')
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
-- First, so that the command is not done if the number cannot be raised (out of memory).
if fence > high then
  redis.call('SET', KEYS[1], ARGV[2])
  high = fence
end
if #ARGV == 2 then
  return {1, high, false}
end
return {1, high, redis.call(unpack(ARGV, 3))}
