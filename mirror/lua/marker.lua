-- Claims a Redis master for a cluster. Of two clusters the one that started at the larger revision has it (of two equal
-- ones the one with the larger id), whichever asks first: so they cannot take it from each other in turns.
--
-- It also says how far its cluster has come, for those founded later: at least so far, as it is written from time to time.
--
-- KEYS[1]  the marker
-- ARGV     cluster, first_revision, revision
--
-- Answers {what was found, cluster, first_revision}, the last two as they stand now:
--   0  the cluster's own marker    1  none, or no marker    2  that of an earlier cluster    3  that of a later one
local found = 1
if redis.call('TYPE', KEYS[1])['ok'] == 'hash' then
  local stands = redis.call('HMGET', KEYS[1], 'cluster', 'first_revision', 'revision')
  local first = stands[2] and #stands[2] <= 16 and string.find(stands[2], '^%d+$') and tonumber(stands[2])
  if stands[1] and first and first < 9007199254740992 then
    local own = tonumber(ARGV[2])
    if stands[1] == ARGV[1] and first == own then
      if (tonumber(stands[3] or '') or 0) < tonumber(ARGV[3]) then
        -- With its memory full Redis refuses, and the marker stands all the same.
        redis.pcall('HSET', KEYS[1], 'revision', ARGV[3])
      end
      return {0, stands[1], stands[2]}
    elseif first > own or (first == own and stands[1] > ARGV[1]) then
      return {3, stands[1], stands[2]}
    end
    found = 2
  end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'first_revision', ARGV[2], 'revision', ARGV[3])
return {found, ARGV[1], ARGV[2]}
