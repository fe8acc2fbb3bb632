-- Begin: record that the handler of an entry begins. Until the entry is finished or given back, its field of deaths counts
-- the death of this process in advance, so a process that dies needs to tell nobody.
--
-- KEYS    1 stream   2 failed attempts; for this, the field is the entry ID and ":deaths"
-- ARGV    1 group   2 consumer   3 deaths, with this one if it counts   4 entry ID
-- Returns the ID most recently assigned in the stream, or "" without changing anything if the entry is not pending under
--         the consumer.
-- Refuses with NOGROUP if the group or the stream does not exist.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], ARGV[4], 1)[1]
if not pending or pending[2] ~= ARGV[2] then return '' end
redis.call('HSET', KEYS[2], ARGV[4] .. ':deaths', ARGV[3])
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then return info[i + 1] end
end
