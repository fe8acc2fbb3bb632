-- due.lua queues a poll of each repository that is due and schedules its next one. Any number of processes may call
-- it: a repository is polled once in its interval.
--
-- KEYS    1 poll (ZSET: repository key -> ms)   2 changes (stream)
--         3 prefix of the sets of watches (hashes); it has their hash tag, and is not a key itself
-- ARGV    1 maximum number of repositories   2 default interval, ms; 0 if watches without an interval are not polled
--         3 seed of the jitter, 1 to 2147483646   4 unique text for the IDs of the changes   5 group of the workers
-- Returns {queued, scheduled, next}: the number of polls queued, the number of repositories scheduled, and the time
--         until the next poll is due in ms, 0 if one is overdue and -1 if there is none
-- Fails with WRONGTYPE if poll or changes has another type, and with OOM; then every due repository stays scheduled.
--
-- A repository becomes due no earlier than nine tenths of its interval after its last poll request. A set
-- may be scheduled too early (it was just written, or the default interval has grown); it is then rescheduled. A set
-- without an interval is checked again in an hour. While the last poll of a repository is still pending, for example because
-- its host is limited, no other is queued. A set that is missing or not a hash is unscheduled.

local poll, changes, prefix = KEYS[1], KEYS[2], KEYS[3]
local limit, default, random, unique = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local function ms(n) return string.format('%.0f', n) end
-- waits reports whether a poll queued earlier is read and not settled. Without the group it is not.
local function waits(id)
  local pending = id and redis.pcall('XPENDING', changes, ARGV[5], id, id, 1) or {}
  return not pending.err and pending[1] ~= nil
end
local function jitter() -- 0.9 to 1.1, Park-Miller: Redis reseeds its own random numbers for each call
  random = random * 16807 % 2147483647
  return 0.9 + 0.2 * random / 2147483647
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('XLEN', changes)
local keys = redis.call('ZRANGEBYSCORE', poll, '-inf', ms(now), 'LIMIT', 0, limit)

local queued = 0
for _, key in ipairs(keys) do
  local hash = prefix .. key
  local h = redis.pcall('HMGET', hash, 'repo', 'interval', 'usual', 'asked', 'polled')
  if h.err or not h[1] then
    redis.call('ZREM', poll, key)
  else
    local span, last = tonumber(h[2] or '') or 0, tonumber(h[4] or '') or 0
    if h[3] == '1' and default > 0 and (span <= 0 or default < span) then span = default end
    if span <= 0 then
      redis.call('ZADD', poll, ms(now + 3600000 * jitter()), key)
      redis.call('HDEL', hash, 'every')
    else
      if waits(h[5]) then
        last = now
      elseif last > now or last + 0.9 * span <= now then
        queued = queued + 1
        local id = redis.call('XADD', changes, '*', 'type', 'due', 'repo', h[1], 'on_busy', 'skip', 'id', 'poll/' .. unique .. '/' .. queued)
        redis.call('HSET', hash, 'asked', ms(now), 'polled', id)
        last = now
      end
      redis.call('ZADD', poll, ms(math.max(last + span * jitter(), now + 1)), key)
      redis.call('HSET', hash, 'every', ms(span))
    end
  end
end

local next, first = -1, redis.call('ZRANGE', poll, 0, 0, 'WITHSCORES')
if first[2] then next = math.max(0, math.ceil(tonumber(first[2]) - now)) end
return {queued, #keys, next}
