-- trouble.lua stores the troubles of a repository for the holder of its lease.
--
-- KEYS    1 state (hash)   2 lock (hash, written by package locking)   3 failing (hash: repository key -> ms)
-- ARGV    1 fence of the lease   2 the troubles, as JSON   3 repository key   4 time of the newest trouble, ms
-- Returns 1, or 0 if a newer lease has been granted or the lock is gone: nothing was changed.
-- Fails with WRONGTYPE if a key is not a hash; nothing is changed.

if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[1] then return 0 end
redis.call('HLEN', KEYS[1])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[1], 'trouble', ARGV[2])
return 1
