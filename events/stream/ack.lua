-- Ack: entries are done with. XACK alone would not ask whose they are.
--
-- KEYS    1 stream   2 due index   3 failed attempts
-- ARGV    1 group   2 consumer   3 how many the consumer may have in flight   then at most 1000 entry ids, in order
-- Returns the ids that it refuses, being pending under another consumer; these are left alone. One
--         that is not pending at all has been acknowledged before, which is as well.
-- Refuses with NOGROUP when the group or the stream is gone.
local group, consumer = ARGV[1], ARGV[2]

-- One look at all that the consumer has is cheaper than one at each of many.
local owned = {}
for _, pending in ipairs(redis.call('XPENDING', KEYS[1], group, ARGV[4], ARGV[#ARGV], ARGV[3], consumer)) do
  owned[pending[1]] = true
end

local mine, refused = {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = not owned[id] and redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
  if owned[id] or pending and pending[2] == consumer then
    mine[#mine + 1] = id
  elseif pending then
    refused[#refused + 1] = id
  end
end
if #mine > 0 then
  redis.call('XACK', KEYS[1], group, unpack(mine))
  redis.call('ZREM', KEYS[2], unpack(mine))
  redis.call('HDEL', KEYS[3], unpack(mine))
end
return refused
