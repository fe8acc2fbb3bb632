-- Unpark: make entries due that were parked only because their key was over the limit.
--
-- KEYS    1 stream   2 due index   3 parked index   4 labels; see nack.lua
-- ARGV    1 group   2 the name that parked entries are pending under
--         3, 4 range of labels for ZRANGEBYLEX: entries of the key that may be unparked
--         5 prefix of labels of entries that may not   6 maximum number of entries
-- Returns the number of entries inspected. It removes entries that are no longer parked from the index.
-- Refuses with NOGROUP if the group or the stream does not exist.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local early = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[3], ARGV[4], 'LIMIT', 0, tonumber(ARGV[6]))
for _, label in ipairs(early) do
  local ms, seq = string.match(label, '%l(%d+)%-%l(%d+)$')
  local id, waits = ms .. '-' .. seq, ARGV[5] .. string.sub(label, #ARGV[5] + 1)
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  if pending and pending[2] == ARGV[2] then
    redis.call('ZADD', KEYS[2], now, id)
    redis.call('ZADD', KEYS[3], 0, waits)
    redis.call('HSET', KEYS[4], id, waits)
  else
    redis.call('HDEL', KEYS[4], id)
  end
  redis.call('ZREM', KEYS[3], label)
end
return #early
