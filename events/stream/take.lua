-- Take: claim due entries and read new ones, and assign each a due time, in one step. groups.lua precedes this script.
--
-- KEYS    1 stream   2 due index (ZSET: entry ID -> ms)   3 failed attempts (HASH: entry ID -> n, and deaths; see begin.lua)
--         4 parked index   5 labels; see label in scripts.go
-- ARGV    1 group   2 consumer   3 the name that parked entries are pending under
--         4 maximum number of entries, 0 for a heartbeat alone   5 how many of them may come from the due index
--         6 visibility, ms   7 bytes of fields and values after which no more is read
--         8 deadline in ms of Redis' clock, 0 for none   9 1 to send the consumer's heartbeat, or 0
-- Returns {now, again, new, next, last, keys, unread}, or {now} after the deadline, without changing anything: the caller may have
--         given up, and other consumers may have been unable to send heartbeats
--         now: Redis' clock, ms
--         again: {ID, {field, value, ...}, failed attempts, deaths, deliveries, origin, more} for each due entry; origin is
--                "parked", or ":" followed by the consumer under which the entry lapsed; more is 1 if further
--                parked entries of the same key may be unparked
--         new: {ID, {field, value, ...}} for each new entry
--         next: ms until the earliest due time, 0 if it has passed, -1 if there is none
--         last: ID most recently assigned in the stream
--         keys: for each pending entry that has vanished from the stream its key, or "" if it is unknown
--         unread: number of entries that have vanished before the group has read them
-- Refuses with NOGROUP if the group or the stream does not exist, and with OOM, without changing anything.
--
-- A pending entry that has vanished is acknowledged and forgotten. Entries have vanished unread if the stream starts after the
-- last one that the group has read, and has lost more than the group has read. Redis before 7.0 and the embedded one do not
-- count what a stream has lost.
local stream, due, failures, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, parked = ARGV[1], ARGV[2], ARGV[3]
local count, share, visibility = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local bytes, deadline = tonumber(ARGV[7]), tonumber(ARGV[8])
local room = bytes

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function ms(n) return string.format('%.0f', n) end
if deadline > 0 and now > deadline then return {now} end

-- Fail now if Redis is out of memory: reading needs none, but indexing what was read does. A heartbeat alone needs none.
if tonumber(ARGV[4]) > 0 then redis.call('ZADD', due, 'XX', '0', '-') end

-- heartbeat resets the idle time of a consumer, which Redis before 7.2 resets only when the consumer receives an
-- entry. It creates the consumer if it does not exist.
local function heartbeat()
  local pending = redis.call('XPENDING', stream, group, '-', '+', 16, consumer)
  for _, p in ipairs(pending) do
    -- Since Redis 7.0, XCLAIM forgets an entry that was trimmed, which its handler may still settle.
    if redis.call('XRANGE', stream, p[1], p[1])[1] then
      -- Claiming an entry from oneself keeps the entry's own idle time and number of deliveries.
      redis.call('XCLAIM', stream, group, consumer, 0, p[1], 'IDLE', p[3], 'RETRYCOUNT', p[4], 'JUSTID')
      return
    end
  end
  if not pending[1] then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
    redis.call('XGROUP', 'CREATECONSUMER', stream, group, consumer)
  end
end
if ARGV[9] == '1' then heartbeat() end

local again, new, keys, moments, at = {}, {}, {}, {}, ms(now + visibility)
local function index(id)
  moments[#moments + 1] = at
  moments[#moments + 1] = id
end

-- remove_from_index returns 1 if entries of the same key remain that may be unparked, else 0, and the key.
local function remove_from_index(id)
  local label = redis.call('HGET', labels, id)
  if not label then return 0, '' end
  redis.call('ZREM', parked_index, label)
  redis.call('HDEL', labels, id)
  local key = string.match(label, '^(.*)[+-]!?%l%d+%-%l%d+$') or label
  return redis.call('ZRANGEBYLEX', parked_index, '[' .. key .. '+', '(' .. key .. ',', 'LIMIT', 0, 1)[1] and 1 or 0, key
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
    local counts, origin, more = redis.call('HMGET', failures, id, id .. ':deaths'), ':' .. pending[2], 0
    if pending[2] == parked then origin, more = 'parked', remove_from_index(id) end
    index(id)
    weigh(claimed[2])
    again[#again + 1] = {id, claimed[2], tonumber(counts[1] or 0), tonumber(counts[2] or 0), pending[4] + 1, origin, more}
  else
    redis.call('XACK', stream, group, id)
    redis.call('ZREM', due, id)
    redis.call('HDEL', failures, id, id .. ':deaths')
    local _, key = remove_from_index(id)
    if pending then keys[#keys + 1] = key and string.gsub(key, '%z$', '') or '' end
  end
end

-- vanished_unread corrects how many entries the group has read, so that each is reported once.
local info = redis.call('XINFO', 'STREAM', stream)
for i = 1, #info, 2 do info[info[i]] = info[i + 1] end
local function vanished_unread()
  local added = info['entries-added']
  if not added then return 0 end
  for _, g in ipairs(groups_of(stream)) do
    if g['name'] == group then
      local at, first, gone = g['last-delivered-id'], info['first-entry'], added - info['length']
      local read = tonumber(g['entries-read'] or '')
      if not read or read >= gone or first and not precedes(at, first[1]) then return 0 end
      redis.call('XGROUP', 'SETID', stream, group, at, 'ENTRIESREAD', gone)
      return gone - read
    end
  end
  return 0
end
local unread = vanished_unread()

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
local last = info['last-generated-id']
if last == '' then last = '0-0' end -- the embedded Redis, before the first entry
return {now, again, new, next, last, keys, unread}
