-- circuit.lua reads a repository's circuit breaker, or counts a failure. Enough consecutive failures open the circuit;
-- a failure while it is half-open opens it again for twice as long.
--
-- KEYS  1 state (hash)   2 lock (hash, written by package locking)
-- ARGV  1 'get' without further arguments, or 'failed'
--       2 fence of the failed attempt's lease   3 the repository's path, in its original case
--       4 consecutive failures that open the circuit   5 first open time, ms   6 maximum open time, ms
--       7 jitter: the open time is multiplied by this factor, 0 to 1
--
-- Returns {verdict, failures, trips, until, now}. until and now are in ms of Redis' clock; until is 0 if the circuit has
-- not opened since the last success. The verdict is
--       'unchanged'  the circuit was only read
--       'counted'    the failure was counted
--       'opened'     the failure was counted and opened the circuit
--       'stale'      a newer lease has been granted, or the lock is gone: nothing was changed
-- Fails with WRONGTYPE if a key is not a hash; nothing is changed.

local state, lock = KEYS[1], KEYS[2]
local function number(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local h = redis.call('HMGET', state, 'failures', 'circuit_trips', 'circuit_open_until')
local failures, trips, ends = tonumber(h[1] or '') or 0, tonumber(h[2] or '') or 0, tonumber(h[3] or '') or 0
local function reply(verdict) return {verdict, failures, trips, ends, now} end

if ARGV[1] == 'get' then return reply('unchanged') end
if redis.call('HGET', lock, 'fence') ~= ARGV[2] then return reply('stale') end

failures = failures + 1
redis.call('HSETNX', state, 'repo', ARGV[3])
redis.call('HSET', state, 'failures', number(failures))
if ends > now or trips == 0 and failures < tonumber(ARGV[4]) then return reply('counted') end

local span = math.min(tonumber(ARGV[5]) * 2 ^ trips, tonumber(ARGV[6]))
trips, ends = trips + 1, now + math.floor(span * tonumber(ARGV[7]))
redis.call('HSET', state, 'circuit_trips', number(trips), 'circuit_open_until', number(ends))
return reply('opened')
