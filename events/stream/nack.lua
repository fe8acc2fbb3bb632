-- Nack: give entries back, to be delivered again after a delay. They are parked: pending under a name
-- that no consumer has, so that whoever still believes to own them is refused from here on. One that
-- has a key is put on the shelf too, where those who work on that key find it.
--
-- KEYS    1 stream   2 due index   3 failed attempts   4 shelf (ZSET, all scores 0)   5 labels (HASH: entry id -> member of the shelf)
-- ARGV    1 group   2 consumer   3 the name to park under
--         then for each entry: id, delay in ms, "failed", "deferred", or "early" for one that never got its
--         turn and may have it before its delay is over, and its label; the label of one without a key is empty
-- Returns the ids that it refuses, being pending under another consumer; these are left alone. One
--         that is parked already or not pending at all has been dealt with before.
-- Refuses with NOGROUP when the group or the stream is gone.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local refused = {}
for i = 4, #ARGV, 4 do
  local id, delay, how, label = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  if pending and pending[2] == ARGV[2] then
    -- A Redis without memory refuses the ZADD, so that comes first.
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + delay), id)
    if label ~= '' then
      redis.call('ZADD', KEYS[4], 0, label)
      redis.call('HSET', KEYS[5], id, label)
    end
    local times = pending[4]
    if how == 'failed' then redis.call('HINCRBY', KEYS[3], id, 1) end
    if how == 'early' then times = math.max(times - 1, 0) end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, id, 'RETRYCOUNT', times, 'JUSTID')
  elseif pending and pending[2] ~= ARGV[3] then
    refused[#refused + 1] = id
  end
end
return refused
