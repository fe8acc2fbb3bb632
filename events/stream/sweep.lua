-- Sweep: give a due moment to pending entries that have none. Reading and indexing are one step here,
-- so these come from elsewhere: a consumer of another kind in the same group, or an index that was lost.
-- The moment is that of an entry just read, so that a consumer that works on it can push it on in time.
--
-- KEYS    1 stream   2 due index
-- ARGV    1 group   2 visibility, ms: also the least time since delivery   3 id to begin at, "-" for the first   4 how many to look at,
--         two at least
-- Returns {repaired, id to go on from, which has been looked at}; the id is empty when there is nothing
--         more to look at.
-- Refuses with NOGROUP when the group or the stream is gone.
if ARGV[3] == '-' and redis.call('XPENDING', KEYS[1], ARGV[1])[1] <= redis.call('ZCARD', KEYS[2]) then
  return {0, ''}
end
local time = redis.call('TIME')
local due = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2]))

local found = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], ARGV[3], '+', ARGV[4])
local repaired = 0
for _, pending in ipairs(found) do
  repaired = repaired + redis.call('ZADD', KEYS[2], 'NX', due, pending[1])
end
if #found < tonumber(ARGV[4]) then return {repaired, ''} end
return {repaired, found[#found][1]}
