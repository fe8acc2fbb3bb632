-- Unpark: make the oldest parked entry of each key due now, of those that may be unparked early.
--
-- KEYS    1 stream   2 due index   3 parked index   4 labels; see label in scripts.go
-- ARGV    1 group   2 the name that parked entries are pending under
--         then for each key, of at most 256: the label prefix of its entries that may be unparked, and the prefix of
--         those that may not
-- Returns for each key 1 if more entries may be unparked, else 0.
--         It removes an entry that is no longer parked from the index instead.
-- Refuses with NOGROUP if the group or the stream does not exist.
local stream, due, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, parked = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local more = {}
for i = 3, #ARGV, 2 do
  local may, must = ARGV[i], ARGV[i + 1]
  local found = redis.call('ZRANGEBYLEX', parked_index, '[' .. may, '(' .. must, 'LIMIT', 0, 2)
  if found[1] then
    local rest = string.sub(found[1], #may + 1)
    local ms, seq = string.match(rest, '^%l(%d+)%-%l(%d+)$')
    local id = ms .. '-' .. seq
    local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
    if pending and pending[2] == parked then
      redis.call('ZADD', due, now, id)
      redis.call('ZADD', parked_index, 0, must .. rest)
      redis.call('HSET', labels, id, must .. rest)
    else
      redis.call('HDEL', labels, id)
    end
    redis.call('ZREM', parked_index, found[1])
  end
  more[#more + 1] = found[2] and 1 or 0
end
return more
