-- Updates the hash of one key, unless it is as new. The only script that writes such hashes.
--
-- KEYS[1]  the hash
-- ARGV     rev, fence, token, state, mode, holder: the new fields
--          retention_ms: how long Redis keeps the hash, 0 for ever
--          optionally the six fields as read before: a hash that still holds them is replaced, whatever its rev
--
-- Answers {outcome, rev, fence}, the last two as the hash holds them now. Outcomes:
--   0  nothing written: the hash is as new, or newer
--   1  written
--   2  replaced: it was no hash, or malformed, or held the fields read before
local FIELDS = {'rev', 'fence', 'token', 'state', 'mode', 'holder'}

-- Numbers are doubles here, and exact below 2^53.
local function number(text)
  if text and #text <= 16 and string.find(text, '^%d+$') then
    local value = tonumber(text)
    if value < 9007199254740992 then
      return value
    end
  end
end

local done = 1
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' then
  local stands = redis.call('HMGET', KEYS[1], unpack(FIELDS))
  local rev = number(stands[1])
  if rev and number(stands[2]) then
    local replace = #ARGV > 7
    for i = 1, replace and 6 or 0 do
      replace = replace and (stands[i] or '') == ARGV[7 + i]
    end
    if replace then
      done = 2
    elseif rev >= tonumber(ARGV[1]) then
      return {0, stands[1], stands[2]}
    end
  else
    done = 2
  end
elseif kind ~= 'none' then
  redis.call('DEL', KEYS[1])
  done = 2
end

local set = {}
for i, field in ipairs(FIELDS) do
  set[2 * i - 1] = field
  set[2 * i] = ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(set))
if ARGV[7] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[7])
end
return {done, ARGV[1], ARGV[2]}
