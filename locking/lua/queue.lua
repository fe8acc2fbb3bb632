-- queue.lua follows clock.lua in the scripts that can grant a lease: acquire and release.
--
-- KEYS  1 lock (hash)  2 queue (zset: token by order of arrival)  3 waiters (hash: token to record)
-- ARGV  1 token        2 lease, µs                3 hand-over lease, µs   4 lifetime of a ticket, µs
--       5 '1' if PUBLISH's count can be trusted   6 the token to grant or queue
--       7-11 its ticket: floor, channel, worker, job, operation
--       12 see acquire.lua     13 time of Redis' clock, µs, after which the call is late; '0' for none
--       14 'yields' if its holder yields, or ''
--
-- A waiter's record is the time at which it counts as dead, a space, and its ticket as a JSON object. The lock's field
-- 'yields' is the token of the last holder that yields; such a request does not wait, so its ticket does not say so.

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

local function mark(token)
  if ARGV[14] ~= '' then redis.call('HSET', lock, 'yields', token) end
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
  mark(token)
  return {'granted', now, fence, expires}
end

-- offer gives the lease to one live waiter, by message and for a short time; the waiter then renews it. It returns the
-- reply for that waiter, or nil if the waiter has no subscriber.
local function offer(token, json, stored)
  local to = cjson.decode(json)
  local fence, expires = terms(stored, to.floor, handover)
  local message = token .. ' ' .. number(now) .. ' ' .. number(fence) .. ' ' .. number(expires) .. ' ' .. lock
  -- Write before publishing: a Redis that refuses writes (a replica, a full disk, too few replicas)
  -- must not announce a grant that it does not record.
  redis.call('PEXPIRE', queue, math.ceil(life / 1000))
  if redis.call('PUBLISH', to.channel, message) == 0 and ARGV[5] == '1' then return nil end
  dequeue(token)
  write(token, to, fence, expires)
  return {'granted', now, fence, expires}
end

-- hand_over offers the lease to the waiters in order. It removes waiters past their deadline, and skips a waiter without a
-- subscriber, which may be reconnecting and keeps its place. It reads CHUNK waiters at a time and at most CHUNKS times that,
-- and makes at most OFFERS offers, which bounds how long it blocks Redis to about 5 ms. The next call continues, because the
-- dead ones are gone. It returns the reply for the waiter that got the lease and its token, or nil if none of those
-- waiters can take it.
local CHUNK, CHUNKS, OFFERS = 256, 16, 1024
local function hand_over(stored)
  local kept = 0
  for _ = 1, CHUNKS do
    local tokens = redis.call('ZRANGE', queue, number(kept), number(kept + CHUNK - 1))
    if #tokens == 0 then return nil end
    local records = redis.call('HMGET', waiters, unpack(tokens))
    local dead, reply, to = {}, nil, nil
    for i, token in ipairs(tokens) do
      local deadline, json = string.match(records[i] or '', '^(%d+) (.*)$')
      if not deadline or tonumber(deadline) <= now then
        dead[#dead + 1] = token
      else
        reply = offer(token, json, stored)
        if reply then
          to = token
          break
        end
        kept = kept + 1
      end
    end
    if #dead > 0 then
      redis.call('ZREM', queue, unpack(dead))
      redis.call('HDEL', waiters, unpack(dead))
    end
    if to or #tokens < CHUNK or kept >= OFFERS then return reply, to end
  end
  return nil
end

-- wait adds a token to the queue, or refreshes its deadline. A holder that yields gets a message.
local function wait(token)
  if not redis.call('ZSCORE', queue, token) then
    redis.call('ZADD', queue, redis.call('HINCRBY', lock, 'seq', 1), token)
    local h = redis.call('HMGET', lock, 'owner', 'yields', 'channel')
    if h[1] and h[2] == h[1] then redis.call('PUBLISH', h[3], '? ' .. h[1]) end
  end
  redis.call('HSET', waiters, token, number(now + life) .. ' ' .. cjson.encode(ticket()))
  redis.call('PEXPIRE', queue, math.ceil(life / 1000))
  redis.call('PEXPIRE', waiters, math.ceil(life / 1000))
end

-- held returns the reply for a token that must wait: how many are ahead of it, and who holds the lease.
local function held(token)
  local h = redis.call('HMGET', lock, 'expires', 'fence', 'since', 'worker', 'job', 'operation', 'owner', 'yields')
  local function integer(s) return tonumber(s or '') or 0 end
  local rank = redis.call('ZRANK', queue, token) or -1
  local yields = h[7] and h[7] == h[8] and 1 or 0
  return {'held', now, integer(h[2]), integer(h[1]), rank, integer(h[3]), h[4] or '', h[5] or '', h[6] or '', yields}
end
