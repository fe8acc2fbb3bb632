-- Beat: extend the due time of entries that are still being handled.
--
-- KEYS    1 stream   2 due index
-- ARGV    1 group   2 consumer   3 visibility, ms   then entry IDs
-- Returns the IDs that are no longer pending under the consumer, which it leaves unchanged.
-- Refuses with NOGROUP if the group or the stream does not exist.
local time = redis.call('TIME')
local due = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[3]))

local lost = {}
for i = 4, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] then
    redis.call('ZADD', KEYS[2], due, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
