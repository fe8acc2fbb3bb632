-- Ripen: entries that were parked only because their key had its share of the window become due.
--
-- KEYS    1 due index   2 shelf   3 labels; see nack.lua
-- ARGV    1, 2 the range of labels of the key's entries that may come early, as of ZRANGEBYLEX
--         3 what the labels of those begin with that may not   4 how many at most
-- Returns how many became due.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local early = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, tonumber(ARGV[4]))
for _, label in ipairs(early) do
  local ms, seq = string.match(label, '%l(%d+)%-%l(%d+)$')
  local id, waits = ms .. '-' .. seq, ARGV[3] .. string.sub(label, #ARGV[3] + 1)
  redis.call('ZADD', KEYS[1], 'XX', now, id)
  redis.call('ZREM', KEYS[2], label)
  redis.call('ZADD', KEYS[2], 0, waits)
  redis.call('HSET', KEYS[3], id, waits)
end
return #early
