-- force.lua takes a lease away from its holder and tells that one. For the length of the lock delay
-- nobody has the lease; then it counts as run out, and the first waiter gets it.
--
-- KEYS  1 lock (hash)
-- ARGV  1 fence  2 lock delay, µs
--
-- Returns {since, worker, job, operation} of the former holder
--      or {} when no lease with that fence is out, even one that has run out; nothing changed

local h = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'since', 'worker', 'job', 'operation', 'channel')
if (h[1] or '') == '' or h[1] == 'forced' or h[2] ~= ARGV[1] then return {} end

redis.call('HSET', KEYS[1], 'owner', 'forced', 'expires', number(now + tonumber(ARGV[2])), 'since', number(now),
  'worker', 'nobody: released by force', 'job', '', 'operation', '')
if h[7] and h[7] ~= '' then redis.call('PUBLISH', h[7], '! ' .. h[1]) end
return {h[3] or '', h[4] or '', h[5] or '', h[6] or ''}
