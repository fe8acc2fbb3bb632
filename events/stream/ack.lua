-- Ack: acknowledge entries. XACK alone does not check their owner.
--
-- KEYS    1 stream   2 due index   3 failed attempts
-- ARGV    1 group   2 consumer   3 maximum entries in flight of the consumer   then at most 1000 entry IDs, in order
-- Returns the IDs that are pending under another consumer, which it leaves unchanged. An ID that is not
--         pending was acknowledged before and is ignored.
-- Refuses with NOGROUP if the group or the stream does not exist.
local group, consumer = ARGV[1], ARGV[2]

-- One XPENDING for all entries of the consumer is cheaper than one for each.
local owned = {}
for _, pending in ipairs(redis.call('XPENDING', KEYS[1], group, ARGV[4], ARGV[#ARGV], ARGV[3], consumer)) do
  owned[pending[1]] = true
end

local mine, counts, refused = {}, {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = not owned[id] and redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
  if owned[id] or pending and pending[2] == consumer then
    mine[#mine + 1] = id
    counts[#counts + 1] = id
    counts[#counts + 1] = id .. ':deaths'
  elseif pending then
    refused[#refused + 1] = id
  end
end
if #mine > 0 then
  redis.call('XACK', KEYS[1], group, unpack(mine))
  redis.call('ZREM', KEYS[2], unpack(mine))
  redis.call('HDEL', KEYS[3], unpack(counts))
end
return refused
