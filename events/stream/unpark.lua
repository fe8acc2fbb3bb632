-- Unpark: make parked entries due now.
--
-- KEYS    1 stream   2 due index   3 parked index   4 labels; see nack.lua
-- ARGV    1 group   2 the name that parked entries are pending under   3 number of keys, at most 256
--         for each key: the label prefix of its entries that may be unparked, the prefix of those that may not,
--         and the maximum number of entries
--         then, for keys whose entries wait for something that has come, the prefix of those that may not be unparked
--         early: a few of them, the oldest and the newest, are unparked, but none that wait because their last attempt failed
-- Returns for each key 1 if more entries may be unparked, else 0; then for each of the latter keys 1 if it has such
--         entries, else 0.
--         It removes entries that are no longer parked from the index.
-- Refuses with NOGROUP if the group or the stream does not exist.
local stream, due, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, parked, keys = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function unpark(id)
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local is_parked = pending and pending[2] == parked
  if is_parked then redis.call('ZADD', due, now, id) end
  return is_parked
end

local more = {}
for n = 1, keys do
  local may, must, limit = ARGV[3 * n + 1], ARGV[3 * n + 2], tonumber(ARGV[3 * n + 3])
  local found = redis.call('ZRANGEBYLEX', parked_index, '[' .. may, '(' .. must, 'LIMIT', 0, limit + 1)
  for i = 1, math.min(#found, limit) do
    local rest = string.sub(found[i], #may + 1)
    local ms, seq = string.match(rest, '^%l(%d+)%-%l(%d+)$')
    local id = ms .. '-' .. seq
    if unpark(id) then
      redis.call('ZADD', parked_index, 0, must .. rest)
      redis.call('HSET', labels, id, must .. rest)
    else
      redis.call('HDEL', labels, id)
    end
    redis.call('ZREM', parked_index, found[i])
  end
  more[n] = #found > limit and 1 or 0
end

for i = 3 * keys + 4, #ARGV do
  local from, to, found = '[' .. ARGV[i] .. 'a', '(' .. ARGV[i] .. '{', 0
  local function unpark_all(some)
    for _, label in ipairs(some) do
      local ms, seq = string.match(label, '%l(%d+)%-%l(%d+)$')
      if unpark(ms .. '-' .. seq) then found = 1 end
    end
  end
  unpark_all(redis.call('ZRANGEBYLEX', parked_index, from, to, 'LIMIT', 0, 4))
  unpark_all(redis.call('ZREVRANGEBYLEX', parked_index, to, from, 'LIMIT', 0, 4))
  more[#more + 1] = found
end
return more
