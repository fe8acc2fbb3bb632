-- Take: claim due entries and read new ones, and assign each a due time, in one step.
--
-- KEYS    1 stream   2 due index (ZSET: entry ID -> ms)   3 failed attempts (HASH: entry ID -> n)
--         4 parked index   5 labels; see nack.lua
-- ARGV    1 group   2 consumer   3 the name that parked entries are pending under
--         4 maximum number of entries   5 how many of them may come from the due index   6 visibility, ms
-- Returns {again, new, next, last}
--         again: {ID, {field, value, ...}, failed attempts, deliveries, origin} for each due entry; origin is
--                "parked", or ":" followed by the consumer under which the entry lapsed
--         new: {ID, {field, value, ...}} for each new entry
--         next: ms until the earliest due time, 0 if it has passed, -1 if there is none
--         last: ID of the stream's last entry
-- Refuses with NOGROUP if the group or the stream does not exist, and with OOM, without changing anything.
--
-- An entry that lapsed under a consumer counts as a failed attempt, because the consumer died or hung. A
-- parked entry does not; the nack has counted it. A pending entry that was trimmed or deleted is
-- acknowledged and forgotten.
local stream, due, failures, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, parked = ARGV[1], ARGV[2], ARGV[3]
local count, share, visibility = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function ms(n) return string.format('%.0f', n) end

-- Fail now if Redis is out of memory: reading needs none, but indexing what was read does.
redis.call('ZADD', due, 'XX', '0', '-')

local again, new, moments, at = {}, {}, {}, ms(now + visibility)
local function index(id)
  moments[#moments + 1] = at
  moments[#moments + 1] = id
end

local function remove_from_index(id)
  local label = redis.call('HGET', labels, id)
  if label then
    redis.call('ZREM', parked_index, label)
    redis.call('HDEL', labels, id)
  end
end

local due_ids = {}
if share > 0 then
  due_ids = redis.call('ZRANGEBYSCORE', due, '-inf', ms(now), 'LIMIT', '0', share)
end
for _, id in ipairs(due_ids) do
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local claimed = pending and redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
  if claimed then
    local failed, origin = redis.call('HGET', failures, id) or '0', 'parked'
    if pending[2] ~= parked then
      failed, origin = redis.call('HINCRBY', failures, id, 1), ':' .. pending[2]
    else
      remove_from_index(id)
    end
    index(id)
    again[#again + 1] = {id, claimed[2], tonumber(failed), pending[4] + 1, origin}
  else
    redis.call('XACK', stream, group, id)
    redis.call('ZREM', due, id)
    redis.call('HDEL', failures, id)
    remove_from_index(id)
  end
end

if #again < count then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count - #again, 'STREAMS', stream, '>')
  new = read and read[1][2] or {}
  for _, entry in ipairs(new) do index(entry[1]) end
end

if #moments > 0 then
  redis.call('ZADD', due, unpack(moments))
end

local next = -1
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if first[2] then
  next = math.max(0, tonumber(first[2]) - now)
end
local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
return {again, new, next, last and last[1] or '0-0'}
