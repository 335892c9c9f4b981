-- Claims a Redis master for a cluster. Each claim of the cluster that has it is a beat: the marker changes.
--
-- A cluster that has it and beats keeps it, whoever asks. Another's marker is replaced only if it still is what the
-- caller has seen for so long that its owner must be gone, or if the caller is to take over from that very cluster.
--
-- A look counts as one only where a beat would have been possible: the script fails wherever Redis refuses writes.
--
-- The marker also says how far its cluster has come, for those founded later: at least so far.
--
-- KEYS[1]  the marker
-- ARGV     cluster, first_revision, revision
--          seen: what may be replaced, as it was answered here; '' for no marker
--          from: the cluster that may be replaced whatever it does, or ''
--
-- Answers {what was done, seen, cluster, first_revision}, the last three as they were found:
--   0  the caller's own marker: it has beaten    1  no marker: claimed    2  another's: replaced    3  left as it was
local function number(text)
  if text and #text <= 16 and string.find(text, '^%d+$') then
    local value = tonumber(text)
    if value < 9007199254740992 then
      return value
    end
  end
end

-- A write that changes nothing: no marker expires. It fails where a beat fails. It also lets a beat through when Redis has
-- no memory left: what needs memory is refused unless the script has written before.
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
