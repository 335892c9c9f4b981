-- The rule of guard/README.md before several commands: all of them are done, or none if the token is stale.
--
--   KEYS[1]     the number
--   KEYS[2…]    the names that the commands use
--   ARGV[1, 2]  the token and the fence
--   ARGV[3…]    the commands, each after the number of its words
--
-- Without a command it is a touch. Answers {1, {what each answered}}, or {0, nil}: nothing was done.

local high = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < high then
  return {0, false}
end
if tonumber(ARGV[2]) > high then
  redis.call('SET', KEYS[1], ARGV[2])
end
local answers, at = {}, 3
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return {1, answers}
