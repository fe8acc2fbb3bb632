-- Ack: entries are done with. XACK alone would not ask whose they are.
--
-- KEYS    1 stream   2 due index   3 failed attempts
-- ARGV    1 group   2 consumer   then at most 1000 entry ids
-- Returns the ids that it refuses, being pending under another consumer; these are left alone. One
--         that is not pending at all has been acknowledged before, which is as well.
-- Refuses with NOGROUP when the group or the stream is gone.
local mine, refused = {}, {}
for i = 3, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] then
    mine[#mine + 1] = ARGV[i]
  elseif pending then
    refused[#refused + 1] = ARGV[i]
  end
end
if #mine > 0 then
  redis.call('XACK', KEYS[1], ARGV[1], unpack(mine))
  redis.call('ZREM', KEYS[2], unpack(mine))
  redis.call('HDEL', KEYS[3], unpack(mine))
end
return refused
