-- Wake: make parked entries due now, because what they wait for has come.
--
-- KEYS    1 stream   2 due index   3 parked index; see nack.lua
-- ARGV    1 group   2 the name that parked entries are pending under   3 number of keys, at most 256
--         for each key: the prefix of the labels of its entries that may not be unparked early, and 1 if the caller chooses
--         among them when more than 8 wait, else 0
--         then IDs of entries
-- Returns for each key 0 if no entries wait; 1 if they are due now, of more than 8 the 4 oldest and the 4 newest; 2 if
--         the caller must choose: nothing was changed. Then for each ID 1 if it was parked and is due now, else 0.
--         Entries that wait because their last attempt failed do not count, and are not changed by their key.
-- Refuses with NOGROUP if the group or the stream does not exist.
local stream, due, parked_index, group, parked, keys = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function wake(id)
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local is_parked = pending and pending[2] == parked
  if is_parked then redis.call('ZADD', due, now, id) end
  return is_parked and 1 or 0
end

local function wake_all(labels)
  local found = 0
  for _, label in ipairs(labels) do
    local ms, seq = string.match(label, '%l(%d+)%-%l(%d+)$')
    found = math.max(found, wake(ms .. '-' .. seq))
  end
  return found
end

local woken = {}
for i = 4, 2 + 2 * keys, 2 do
  local from, to = '[' .. ARGV[i] .. 'a', '(' .. ARGV[i] .. '{' -- IDs begin with a letter
  if ARGV[i + 1] == '1' and redis.call('ZLEXCOUNT', parked_index, from, to) > 8 then
    woken[#woken + 1] = 2
  else
    local oldest = wake_all(redis.call('ZRANGEBYLEX', parked_index, from, to, 'LIMIT', 0, 4))
    local newest = wake_all(redis.call('ZREVRANGEBYLEX', parked_index, to, from, 'LIMIT', 0, 4))
    woken[#woken + 1] = math.max(oldest, newest)
  end
end
for i = 4 + 2 * keys, #ARGV do woken[#woken + 1] = wake(ARGV[i]) end
return woken
