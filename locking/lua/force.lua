-- force.lua releases a lease by force and notifies its holder. Nobody gets the lease during the lock
-- delay; then it counts as expired, and the first waiter gets it.
--
-- KEYS  1 lock (hash)
-- ARGV  1 fence  2 lock delay, µs
--
-- Returns {since, worker, job, operation} of the former holder
--      or {}, without changing anything, if no lease with that fence exists, not even an expired one

local h = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'since', 'worker', 'job', 'operation', 'channel')
if (h[1] or '') == '' or h[1] == 'forced' or h[2] ~= ARGV[1] then return {} end

redis.call('HSET', KEYS[1], 'owner', 'forced', 'expires', number(now + tonumber(ARGV[2])), 'since', number(now),
  'worker', 'nobody: released by force', 'job', '', 'operation', '')
if h[7] and h[7] ~= '' then redis.call('PUBLISH', h[7], '! ' .. h[1]) end
return {h[3] or '', h[4] or '', h[5] or '', h[6] or ''}
