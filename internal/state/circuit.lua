-- circuit.lua reads a repository's circuit breaker, and counts one more failure in a row if told to:
-- one too many opens it, and one while it is half-open opens it again for twice as long.
--
-- KEYS  1 state (hash)  2 lock (hash); see package locking, which writes it
-- ARGV  1 'look', and that is all, or 'failed'
--       2 fence of the lease under which it failed   3 the repository's path as spelled
--       4 so many failures in a row open it   5 for how long, ms   6 at most, ms   7 jitter: the share of that, 0 to 1
--
-- Returns {verdict, failures, trips, until, now}: until and now in ms of Redis' clock, until is 0 when the
-- circuit has not opened since the last success. The verdict is
--       'looked'   nothing changed
--       'counted'  the failure is counted, no more
--       'opened'   and this one opened the circuit
--       'stale'    another lease has been granted since, or the lock is gone: nothing changed
-- Refuses with WRONGTYPE when a key holds something else; nothing changed.

local state, lock = KEYS[1], KEYS[2]
local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local h = redis.call('HMGET', state, 'failures', 'circuit_trips', 'circuit_open_until')
local failures, trips, ends = tonumber(h[1] or '') or 0, tonumber(h[2] or '') or 0, tonumber(h[3] or '') or 0
local function reply(verdict) return {verdict, failures, trips, ends, now} end

if ARGV[1] == 'look' then return reply('looked') end
if redis.call('HGET', lock, 'fence') ~= ARGV[2] then return reply('stale') end

failures = failures + 1
redis.call('HSETNX', state, 'repo', ARGV[3])
redis.call('HSET', state, 'failures', number(failures))
if ends > now or trips == 0 and failures < tonumber(ARGV[4]) then return reply('counted') end

local span = math.min(tonumber(ARGV[5]) * 2 ^ trips, tonumber(ARGV[6]))
trips, ends = trips + 1, now + math.floor(span * tonumber(ARGV[7]))
redis.call('HSET', state, 'circuit_trips', number(trips), 'circuit_open_until', number(ends))
return reply('opened')
