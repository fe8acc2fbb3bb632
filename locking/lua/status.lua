-- status.lua reads one lock.
--
-- KEYS  1 lock (hash)  2 queue (zset)  3 waiters (hash)
-- ARGV  1 maximum number of waiters
--
-- Returns {now, owner, expires, fence, since, worker, job, operation, ticket, ticket, ...}: all strings,
-- '' if unknown; the tickets, see queue.lua, are those of the live waiters, in order.
-- Changes nothing.

local reply = {number(now)}
local h = redis.call('HMGET', KEYS[1], 'owner', 'expires', 'fence', 'since', 'worker', 'job', 'operation')
for i = 1, 7 do reply[#reply + 1] = h[i] or '' end
for _, token in ipairs(redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)) do
  local deadline, json = string.match(redis.call('HGET', KEYS[3], token) or '', '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > now then reply[#reply + 1] = json end
end
return reply
