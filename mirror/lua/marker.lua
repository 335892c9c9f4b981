-- Claims a Redis master for a cluster. Each claim by the owner is a heartbeat: the marker changes.
--
-- An owner that sends heartbeats keeps the master. Another cluster's marker is replaced only if it still is the one that the
-- caller has seen for long enough, or if the caller is configured to take over from that very cluster.
--
-- A check must fail wherever a heartbeat would have failed, so the script fails wherever Redis refuses writes.
--
-- The marker also has a revision that its cluster has reached, for clusters founded later.
--
-- KEYS[1]  the marker
-- ARGV     cluster, first_revision, revision
--          seen: the marker that may be replaced, as answered here; '' for no marker
--          from: the cluster that may be replaced even while alive, or ''
--
-- Answers {outcome, seen, cluster, first_revision}, the last three as found. Outcomes:
--   0  the caller's own marker: heartbeat    1  no marker: claimed    2  another's: replaced    3  unchanged
local function number(text)
  if text and #text <= 16 and string.find(text, '^%d+$') then
    local value = tonumber(text)
    if value < 9007199254740992 then
      return value
    end
  end
end

-- A write that changes nothing, as no marker expires. It fails where a heartbeat fails. It also allows a heartbeat when Redis is
-- out of memory, which refuses commands that need memory unless the script has written before.
redis.call('PERSIST', KEYS[1])

local seen, cluster, first, reached, beat = '', '', '0', 0, 0
if redis.call('TYPE', KEYS[1])['ok'] == 'hash' then
  local stands = redis.call('HMGET', KEYS[1], 'cluster', 'first_revision', 'revision', 'beat')
  if stands[1] and number(stands[2]) then
    cluster, first = stands[1], stands[2]
    reached, beat = number(stands[3]) or 0, number(stands[4]) or 0
    seen = table.concat({cluster, first, stands[3] or '', stands[4] or ''}, ' ')
  end
end

local done
if cluster == ARGV[1] then
  done = 0
elseif seen == ARGV[4] or (cluster ~= '' and cluster == ARGV[5]) then
  done = cluster == '' and 1 or 2
else
  return {3, seen, cluster, first}
end
if done ~= 0 then
  redis.call('DEL', KEYS[1])
  reached = 0
end
if reached < tonumber(ARGV[3]) then
  redis.call('HSET', KEYS[1], 'revision', ARGV[3])
end
redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'first_revision', ARGV[2], 'beat', beat + 1)
return {done, seen, cluster, first}
