-- due.lua asks for a look at the remotes of repositories whose time has come, and puts each down for its
-- next time. Whoever calls it, and however many do: of one repository a look is asked for once in its interval.
--
-- KEYS    1 poll (ZSET: repository key -> ms)   2 changes (stream)
--         3 what the names of the sets of watches (hashes) begin with; it has their hash tag, and is no key itself
-- ARGV    1 how many repositories at most   2 the usual interval, ms; 0 when those that name none are not polled
--         3 a number from 1 to 2147483646 to make jitter of   4 a text that no other call has, for the changes' ids
-- Returns {asked, looked, next}: so many changes were asked for, so many repositories were put down anew, and ms
--         from now until the next of all is due, 0 if one is already and -1 if there is none
-- Refuses with WRONGTYPE when poll or changes holds something else, and with OOM; then no repository that was
--         due is forgotten.
--
-- A repository is due nine tenths of its interval after a look was last asked for, by anybody, at the
-- soonest. A set may be put down too early (it was just written, or the usual interval is longer now): it is put
-- off. Without an interval it is looked at again in an hour. A set that is gone, or no hash, is taken out.

local poll, changes, prefix = KEYS[1], KEYS[2], KEYS[3]
local limit, usual, random, unique = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local function ms(n) return string.format('%.0f', n) end
local function jitter() -- from 0.9 to 1.1, by Park and Miller: Redis starts its own random numbers anew for each call
  random = random * 16807 % 2147483647
  return 0.9 + 0.2 * random / 2147483647
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('XLEN', changes)
local keys = redis.call('ZRANGEBYSCORE', poll, '-inf', ms(now), 'LIMIT', 0, limit)

local asked = 0
for _, key in ipairs(keys) do
  local hash = prefix .. key
  local h = redis.pcall('HMGET', hash, 'repo', 'interval', 'usual', 'asked')
  if h.err or not h[1] then
    redis.call('ZREM', poll, key)
  else
    local span, last = tonumber(h[2] or '') or 0, tonumber(h[4] or '') or 0
    if h[3] == '1' and usual > 0 and (span <= 0 or usual < span) then span = usual end
    if span <= 0 then
      redis.call('ZADD', poll, ms(now + 3600000 * jitter()), key)
    else
      if last > now or last + 0.9 * span <= now then
        asked = asked + 1
        redis.call('XADD', changes, '*', 'type', 'due', 'repo', h[1], 'on_busy', 'skip', 'id', 'poll/' .. unique .. '/' .. asked)
        redis.call('HSET', hash, 'asked', ms(now))
        last = now
      end
      redis.call('ZADD', poll, ms(math.max(last + span * jitter(), now + 1)), key)
    end
  end
end

local next, first = -1, redis.call('ZRANGE', poll, 0, 0, 'WITHSCORES')
if first[2] then next = math.max(0, math.ceil(tonumber(first[2]) - now)) end
return {asked, #keys, next}
