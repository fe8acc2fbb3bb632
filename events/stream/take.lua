-- Take: claim what is due, read what is new, and give each entry a due moment, in one step.
--
-- KEYS    1 stream   2 due index (ZSET: entry id -> ms)   3 failed attempts (HASH: entry id -> n)
--         4 shelf   5 labels; see nack.lua
-- ARGV    1 group   2 consumer   3 the name that parked entries are pending under
--         4 how many at most   5 how many of them may come from the due index   6 visibility, ms
-- Returns {again, new, next, last}
--         again: {id, {field, value, ...}, failed attempts, deliveries, origin} each; origin is "parked", or the
--                consumer under whom the entry lapsed, behind a colon
--         new: {id, {field, value, ...}} each
--         next: ms from now to the earliest due moment, 0 if it has passed, -1 if there is none
--         last: id of the stream's last entry; what comes after it is news
-- Refuses with NOGROUP when the group or the stream is gone, and with OOM; then nothing changed.
--
-- An entry that lapsed under a consumer counts as a failed attempt: whoever had it died or hung. A
-- parked one does not; whoever parked it has counted. An entry that was trimmed away or deleted while
-- pending is acknowledged and forgotten.
local stream, due, tries, shelf, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, parked = ARGV[1], ARGV[2], ARGV[3]
local count, share, visibility = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function ms(n) return string.format('%.0f', n) end

-- Reading needs no memory and indexing does: one that has none left is to say so before we read.
redis.call('ZADD', due, 'XX', '0', '-')

local again, new, moments, at = {}, {}, {}, ms(now + visibility)
local function index(id)
  moments[#moments + 1] = at
  moments[#moments + 1] = id
end

local function unshelve(id)
  local label = redis.call('HGET', labels, id)
  if label then
    redis.call('ZREM', shelf, label)
    redis.call('HDEL', labels, id)
  end
end

local ripe = {}
if share > 0 then
  ripe = redis.call('ZRANGEBYSCORE', due, '-inf', ms(now), 'LIMIT', '0', share)
end
for _, id in ipairs(ripe) do
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local claimed = pending and redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
  if claimed then
    local failed, origin = redis.call('HGET', tries, id) or '0', 'parked'
    if pending[2] ~= parked then
      failed, origin = redis.call('HINCRBY', tries, id, 1), ':' .. pending[2]
    else
      unshelve(id)
    end
    index(id)
    again[#again + 1] = {id, claimed[2], tonumber(failed), pending[4] + 1, origin}
  else
    redis.call('XACK', stream, group, id)
    redis.call('ZREM', due, id)
    redis.call('HDEL', tries, id)
    unshelve(id)
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
