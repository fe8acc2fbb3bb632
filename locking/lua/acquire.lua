-- acquire.lua requests the lease. Calling it again with the same token is safe, and is how a waiter
-- polls: a token that already owns the lease gets the same fence again (a higher one only if the request
-- now has a higher floor); a waiting token keeps its place and refreshes its deadline. An expired lease
-- goes to the first live waiter, no matter which token calls, unless its holder may be about to renew it.
--
-- KEYS, ARGV 1-14: see queue.lua; 6 is the same token as 1
-- ARGV 15 time of Redis' clock, µs, until which this call may end another's expired lease; '0' for never
--      16 the same for a lease that was handed over and has not been renewed yet
--
-- Returns {'granted', now, fence, expires}
--      or {'held', now, fence, expires, rank, since, worker, job, operation, yields}; rank -1 means not queued. A lease
--         whose holder may be about to renew it is still held after it has expired
--      or {'late', now} after the time in argument 13, without changing anything: after a hang, Redis runs calls whose
--         callers have given up, and which must not take a lease
-- Times are µs of Redis' clock.
-- Refuses nothing.

if ARGV[13] ~= '0' and now > tonumber(ARGV[13]) then return {'late', now} end

local token = ARGV[6]
local h = redis.call('HMGET', lock, 'owner', 'expires', 'fence', 'since')
local owner, expires, stored = h[1] or '', tonumber(h[2] or '0'), tonumber(h[3] or '0')

-- ending reports whether an expired lease may go to another token. After Redis has hung, every lease looks expired: the
-- caller sends until when it may end leases, which is never if it has just lost touch with Redis itself.
local function ending()
  if owner == '' or owner == 'forced' then return true end
  local handed = expires - tonumber(h[4] or '0') <= handover
  return now <= tonumber(handed and ARGV[16] or ARGV[15])
end

if owner == token then
  local to = ticket()
  local fence, ends = math.max(stored, tonumber(to.floor) + 1), now + lease
  redis.call('HSET', lock, 'expires', number(ends), 'fence', number(fence),
    'worker', to.worker, 'job', to.job, 'operation', to.operation)
  mark(token)
  if ARGV[14] == '' then redis.call('HDEL', lock, 'yields') end -- the token was granted for another request
  return {'granted', now, fence, ends}
end

if (owner == '' or expires <= now) and ending() then
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
