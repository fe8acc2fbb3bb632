-- reclaim.lua restores a lease in a Redis that has lost its data.
--
-- KEYS  1 lock (hash)
-- ARGV  1 token  2 lease, µs  3 fence  4 since, µs  5 channel  6 worker  7 job  8 operation  9 'yields' or ''
--
-- Returns 1 if the token owns the lease again, with its old fence; 0 if the lease is lost.
-- Refuses if another token has owned the lease since the data was lost, even if it is free again.

local h = redis.call('HMGET', KEYS[1], 'owner', 'fence')
if h[2] and not (h[1] == ARGV[1] and h[2] == ARGV[3]) then return 0 end

redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'expires', number(now + tonumber(ARGV[2])), 'fence', ARGV[3],
  'since', ARGV[4], 'channel', ARGV[5], 'worker', ARGV[6], 'job', ARGV[7], 'operation', ARGV[8])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'yields', ARGV[1]) end
redis.call('PEXPIRE', KEYS[1], KEEP)
return 1
