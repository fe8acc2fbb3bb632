-- held.lua stores a field of a repository's state, such as its troubles, for the holder of its lease.
--
-- KEYS    1 state (hash)   2 lock (hash, written by package locking)   3 failing (hash: repository key -> ms)
-- ARGV    1 fence of the lease   2 the field   3 its value   4 repository key   5 time of the newest trouble in ms, or ''
-- Returns 1, or 0 if a newer lease has been granted or the lock is gone: nothing was changed.
-- Fails with WRONGTYPE if a key is not a hash; nothing is changed.

if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[1] then return 0 end
redis.call('HLEN', KEYS[1])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], ARGV[4], ARGV[5]) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 1
