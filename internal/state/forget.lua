-- forget.lua deletes the keys of a repository that is gone, with its lock, for the holder of the lease.
--
-- KEYS    1 lock (of package locking)   2 queue of the lock   3 watches of the repository (of package watch)
--         4 state (hash)   5 state of its views   6 failing (hash)
-- ARGV    1 owner of the lease   2 its fence   3 repository key
-- Returns 1, or 0 if the lease is lost or waited for, or if the repository is watched or in another cell: nothing changed.
-- Fails with WRONGTYPE if the lock, the state or failing is not a hash; nothing is changed.

local h = redis.call('HMGET', KEYS[1], 'owner', 'fence')
local kept = redis.call('EXISTS', KEYS[2], KEYS[3]) + redis.call('HEXISTS', KEYS[4], 'cell')
if h[1] ~= ARGV[1] or h[2] ~= ARGV[2] or kept > 0 then return 0 end
redis.call('HDEL', KEYS[6], ARGV[3])
redis.call('UNLINK', KEYS[1], KEYS[4], KEYS[5])
return 1
