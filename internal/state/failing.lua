-- failing.lua forgets the failures of repositories whose newest failure is old: of at most 200 of them.
--
-- KEYS    1 failing (ZSET)
-- ARGV    1 prefix of the states   2 field of the failures   3 time in ms of Redis' clock: older ones are forgotten
-- Returns the number of repositories.

local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3], 'LIMIT', 0, 200)
for _, member in ipairs(members) do
  redis.pcall('HDEL', ARGV[1] .. member, ARGV[2]) -- a key of another type is not ours
  redis.call('ZREM', KEYS[1], member)
end
return #members
