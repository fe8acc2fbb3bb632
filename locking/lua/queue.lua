-- queue.lua follows clock.lua in the scripts that can grant a lease: acquire and release.
--
-- KEYS  1 lock (hash)  2 queue (zset: token by order of arrival)  3 waiters (hash: token to record)
-- ARGV  1 token        2 lease, µs                3 hand-over lease, µs   4 lifetime of a ticket, µs
--       5 '1' if PUBLISH's count can be trusted   6 the token to grant or queue
--       7-11 its ticket: floor, channel, worker, job, operation
--
-- A waiter's record is the time at which it counts as dead, a space, and its ticket as a JSON object.

local lock, queue, waiters = KEYS[1], KEYS[2], KEYS[3]
local lease, handover, life = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function ticket()
  return {floor = ARGV[7], channel = ARGV[8], worker = ARGV[9], job = ARGV[10], operation = ARGV[11]}
end

local function dequeue(token)
  redis.call('ZREM', queue, token)
  redis.call('HDEL', waiters, token)
end

-- terms returns the fence of a grant made now, and when it expires.
local function terms(stored, floor, span)
  return math.max(stored + 1, now, tonumber(floor) + 1), now + span
end

local function write(token, to, fence, expires)
  redis.call('HSET', lock, 'owner', token, 'expires', number(expires), 'fence', number(fence), 'since', number(now),
    'channel', to.channel, 'worker', to.worker, 'job', to.job, 'operation', to.operation)
  redis.call('PEXPIRE', lock, KEEP)
end

-- grant gives the lease to the caller of the script.
local function grant(token, stored)
  local to = ticket()
  local fence, expires = terms(stored, to.floor, lease)
  write(token, to, fence, expires)
  return {'granted', now, fence, expires}
end

-- hand_over gives the lease to the first live waiter, by message and for a short time; the waiter then
-- renews it. It removes waiters past their deadline. It skips a waiter without a subscriber, which may be
-- reconnecting and keeps its place. It returns the reply for that waiter and its token, or nil if no
-- waiter can take the lease.
local function hand_over(stored)
  local counted = ARGV[5] == '1'
  for _, token in ipairs(redis.call('ZRANGE', queue, '0', '255')) do
    local record = redis.call('HGET', waiters, token) or ''
    local deadline, json = string.match(record, '^(%d+) (.*)$')
    if not deadline or tonumber(deadline) <= now then
      dequeue(token)
    else
      local to = cjson.decode(json)
      local fence, expires = terms(stored, to.floor, handover)
      local message = token .. ' ' .. number(now) .. ' ' .. number(fence) .. ' ' .. number(expires) .. ' ' .. lock
      -- Write before publishing: a Redis that refuses writes (a replica, a full disk, too few replicas)
      -- must not announce a grant that it does not record.
      redis.call('PEXPIRE', queue, math.ceil(life / 1000))
      local heard = redis.call('PUBLISH', to.channel, message)
      if heard > 0 or not counted then
        dequeue(token)
        write(token, to, fence, expires)
        return {'granted', now, fence, expires}, token
      end
    end
  end
  return nil
end

-- wait adds a token to the queue, or refreshes its deadline.
local function wait(token)
  if not redis.call('ZSCORE', queue, token) then
    redis.call('ZADD', queue, redis.call('HINCRBY', lock, 'seq', 1), token)
  end
  redis.call('HSET', waiters, token, number(now + life) .. ' ' .. cjson.encode(ticket()))
  redis.call('PEXPIRE', queue, math.ceil(life / 1000))
  redis.call('PEXPIRE', waiters, math.ceil(life / 1000))
end

-- held returns the reply for a token that must wait: how many are ahead of it, and who holds the lease.
local function held(token)
  local h = redis.call('HMGET', lock, 'expires', 'fence', 'since', 'worker', 'job', 'operation')
  local function integer(s) return tonumber(s or '') or 0 end
  local rank = redis.call('ZRANK', queue, token) or -1
  return {'held', now, integer(h[2]), integer(h[1]), rank, integer(h[3]), h[4] or '', h[5] or '', h[6] or ''}
end
