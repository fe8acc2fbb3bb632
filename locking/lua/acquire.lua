-- acquire.lua requests the lease. Calling it again with the same token is safe, and is how a waiter
-- polls: a token that already owns the lease gets the same fence again (a higher one only if the request
-- now has a higher floor); a waiting token keeps its place and refreshes its deadline. An expired lease
-- goes to the first live waiter, no matter which token calls.
--
-- KEYS, ARGV 1-11: see queue.lua; 6 is the same token as 1
-- ARGV 12 'wait', or 'skip' to not join the queue
--
-- Returns {'granted', now, fence, expires}
--      or {'held', now, fence, expires, rank, since, worker, job, operation}; rank -1 means not queued
-- Times are µs of Redis' clock.
-- Refuses nothing.

local token = ARGV[6]
h = redis.call('HMGET', lock, 'owner', 'expires', 'fence')
local owner, expires, stored = h[1] or '', tonumber(h[2] or '0'), tonumber(h[3] or '0')

if owner == token then
  local to = ticket()
  local fence, ends = math.max(stored, tonumber(to.floor) + 1), now + lease
  redis.call('HSET', lock, 'expires', number(ends), 'fence', number(fence),
    'worker', to.worker, 'job', to.job, 'operation', to.operation)
  return {'granted', now, fence, ends}
end

if owner == '' or expires <= now then
  local head = redis.call('ZRANGE', queue, '0', '0')[1]
  local reply, to
  if head and head ~= token then reply, to = hand_over(stored) end
  if to == token then return reply end
  if not to then
    if head then dequeue(token) end
    return grant(token, stored)
  end
elseif expires > now + 4 * lease then
  -- No lease is that long, so Redis' clock has gone back. A live holder renews in time.
  redis.call('HSET', lock, 'expires', number(now + 4 * lease))
end

if ARGV[12] == 'wait' then wait(token) end
return held(token)
