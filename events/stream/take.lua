-- Take: claim due entries and read new ones, and assign each a due time, in one step. alive.lua precedes this script.
--
-- KEYS    1 stream   2 due index (ZSET: entry ID -> ms)   3 failed attempts (HASH: entry ID -> n)
--         4 parked index   5 labels; see label in scripts.go
-- ARGV    1 group   2 consumer   3 the name that parked entries are pending under
--         4 maximum number of entries   5 how many of them may come from the due index   6 visibility, ms
--         7 bytes of fields and values after which no more is read   8 deadline in ms of Redis' clock, 0 for none
--         9 when this process subscribed as the consumer, in ms of Redis' clock   10 1 to send the consumer's heartbeat, or 0
-- Returns {now, again, new, next, last}, or {now} after the deadline, without changing anything: the caller may have
--         given up, and other consumers may have been unable to send heartbeats
--         now: Redis' clock, ms
--         again: {ID, {field, value, ...}, failed attempts, deliveries, origin, more} for each due entry; origin is
--                "parked", or ":" followed by the consumer under which the entry lapsed; more is 1 if further
--                parked entries of the same key may be unparked
--         new: {ID, {field, value, ...}} for each new entry
--         next: ms until the earliest due time, 0 if it has passed, -1 if there is none
--         last: ID of the stream's last entry
-- Refuses with NOGROUP if the group or the stream does not exist, and with OOM, without changing anything.
--
-- An entry that lapsed under another consumer, or under this one before this process subscribed, counts as a failed
-- attempt, because that process died or hung. One that lapsed under this consumer since does not: the process lives, and
-- the reply of its take was lost. A parked entry does not either; the nack has counted it. A pending entry that was trimmed
-- or deleted is acknowledged and forgotten.
local stream, due, failures, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, parked = ARGV[1], ARGV[2], ARGV[3]
local count, share, visibility = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local bytes, deadline, subscribed = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local room = bytes

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function ms(n) return string.format('%.0f', n) end
if deadline > 0 and now > deadline then return {now} end

-- Fail now if Redis is out of memory: reading needs none, but indexing what was read does.
redis.call('ZADD', due, 'XX', '0', '-')

if ARGV[10] == '1' then heartbeat(stream, group, consumer) end

local again, new, moments, at = {}, {}, {}, ms(now + visibility)
local function index(id)
  moments[#moments + 1] = at
  moments[#moments + 1] = id
end

-- remove_from_index returns 1 if entries of the same key remain that may be unparked, else 0.
local function remove_from_index(id)
  local label = redis.call('HGET', labels, id)
  if not label then return 0 end
  redis.call('ZREM', parked_index, label)
  redis.call('HDEL', labels, id)
  local key = string.match(label, '^(.*)[+-]!?%l%d+%-%l%d+$') or label
  return redis.call('ZRANGEBYLEX', parked_index, '[' .. key .. '+', '(' .. key .. ',', 'LIMIT', 0, 1)[1] and 1 or 0
end

local function weigh(fields)
  for _, field in ipairs(fields) do room = room - #field end
end

local due_ids = {}
if share > 0 then
  due_ids = redis.call('ZRANGEBYSCORE', due, '-inf', ms(now), 'LIMIT', '0', share)
end
for _, id in ipairs(due_ids) do
  if room <= 0 then break end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local claimed = pending and redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
  if claimed then
    local failed, origin, more = redis.call('HGET', failures, id) or '0', ':' .. pending[2], 0
    if pending[2] == parked then
      origin, more = 'parked', remove_from_index(id)
    elseif pending[2] ~= consumer or now - pending[3] < subscribed then
      failed = redis.call('HINCRBY', failures, id, 1)
    end
    index(id)
    weigh(claimed[2])
    again[#again + 1] = {id, claimed[2], tonumber(failed), pending[4] + 1, origin, more}
  else
    redis.call('XACK', stream, group, id)
    redis.call('ZREM', due, id)
    redis.call('HDEL', failures, id)
    remove_from_index(id)
  end
end

-- The size of an entry is known only once it is read, so read a few at a time: as many as fit if they are like the previous.
local step = 2
while room > 0 and #again + #new < count do
  local wanted = math.min(step, count - #again - #new)
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', wanted, 'STREAMS', stream, '>')
  local some = read and read[1][2] or {}
  for _, entry in ipairs(some) do
    index(entry[1])
    weigh(entry[2])
    new[#new + 1] = entry
  end
  if #some < wanted then break end
  step = math.max(1, math.min(8, math.floor(room * (#again + #new) / math.max(1, bytes - room))))
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
return {now, again, new, next, last and last[1] or '0-0'}
