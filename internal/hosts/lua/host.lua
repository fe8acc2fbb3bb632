-- host.lua precedes every script about one host: it reads the host's state and decides who may send a request.
--
-- KEYS  1 state of the host (hash); every other key of the host starts with this name and a colon   2 due (zset)
-- ARGV  1 clock offset in ms, 0 outside tests   2 maximum permits   3 host, as in due   4 credential, or ''
--
-- Keys of a host, h being the name of its state. A credential's name contains no colon.
--   h (hash)                     limit, slow (slow start up to this limit), floor, floor_before, floor_at (minimum latency),
--                                halved, failures, trips, open, blocked, refused, refused_at
--   h:permits (zset)             permit → end of its lease in ms: "t:{token}" in use, "r:{credential}:{repo}" reserved
--   h:permits:polls (zset)       the polls among them
--   h:reserved (zset)            "{class}:{credential}:{repo}", reserved → end of the reservation, when it is queued again;
--                                "again:{credential}:{repo}", queued again → a day later
--   h:served (zset)              repository → time of its last permit, for the last 10 minutes
--   h:answered (zset)            repository → time of its last success, for the last 10 minutes, unless it has failed since
--   h:waiting:{class} (zset)     credential with a wait queue → when it may be served next
--   h:limited (zset)             blocked credential → end of the block
--   h:c:{credential} (hash)      blocked, strikes, struck, window (slow start), gap, gap_ends, next (pace), limited
--   h:c:{credential}:permits (zset), h:c:{credential}:{class} (zset: repository → order in the wait queue)
-- All expire after a day without use.
--
-- The classes are work, new and polls. A change is in new if the host has not answered its repository lately, but others.

local DAY, RESERVED, SPAN, STEP = 86400000, 5000, 600000, 200
local CLASSES = {'work', 'new', 'polls'} -- from the best to the worst
local OFFSETS = {push = 0, retry = 900000, poll = 3600000} -- how much later a kind is served; more than SPAN

local state, due, maximum, host_name = KEYS[1], KEYS[2], tonumber(ARGV[2]), ARGV[3]
local permits, poll_permits, served, answered = state .. ':permits', state .. ':permits:polls', state .. ':served', state .. ':answered'
local reserved = state .. ':reserved'
local function number(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])

local function load(key, fields)
  local values, loaded = redis.call('HMGET', key, unpack(fields)), {}
  for i, field in ipairs(fields) do loaded[field] = tonumber(values[i] or '') or 0 end
  return loaded
end

local function store(key, ...)
  redis.call('HSET', key, ...)
  redis.call('PEXPIRE', key, DAY)
end

local function add(key, score, member)
  redis.call('ZADD', key, number(score), member)
  redis.call('PEXPIRE', key, DAY)
end

local host = load(state, {'limit', 'slow', 'floor', 'floor_before', 'floor_at', 'halved', 'failures', 'trips', 'open', 'blocked',
  'refused_at', 'probed'})
host.limit = math.min(host.limit > 0 and host.limit or maximum, maximum)
redis.call('ZREMRANGEBYSCORE', permits, '-inf', number(now))
redis.call('ZREMRANGEBYSCORE', poll_permits, '-inf', number(now))

local credentials = {}
local function credential(name)
  local c = credentials[name]
  if not c then
    local key = state .. ':c:' .. name
    c = load(key, {'blocked', 'strikes', 'struck', 'window', 'gap', 'gap_ends', 'next', 'limited'})
    c.name, c.key, c.permits = name, key, key .. ':permits'
    if c.gap_ends <= now then c.gap, c.next = 0, 0 end
    redis.call('ZREMRANGEBYSCORE', c.permits, '-inf', number(now))
    credentials[name] = c
  end
  return c
end

-- host_block and block return why and until when no request may be sent, or nil.
local function host_block()
  if host.open > now then return 'no answer', host.open end
  if host.blocked > now then return 'host rate limit', host.blocked end
end

local function block(c)
  local reason, ends = host_block()
  if reason then return reason, ends end
  if c.blocked > now then return 'rate limit', c.blocked end
  if c.next > now then return 'quota', c.next end
end

-- is_answered reports whether the host has answered a repository lately. Another one may be the reason why it is not: a host can
-- fail for some of its repositories only.
local function is_answered(repo)
  return (tonumber(redis.call('ZSCORE', answered, repo) or '') or 0) > now - SPAN
end

local function any_answered()
  local newest = redis.call('ZREVRANGE', answered, 0, 0, 'WITHSCORES')
  return (tonumber(newest[2] or '') or 0) > now - SPAN
end

local function class_of(kind, repo)
  if kind == 'poll' then return 'polls' end
  return (is_answered(repo) or not any_answered()) and 'work' or 'new'
end

-- full returns which limit of concurrent requests is reached, or nil.
local function full(c, class)
  local limit = math.floor(host.limit)
  if class == 'new' and limit > 1 then limit = limit - math.max(1, math.floor(limit / 8)) end
  if redis.call('ZCARD', permits) >= limit then return 'limit' end
  if class == 'polls' and redis.call('ZCARD', poll_permits) >= math.max(1, math.floor(host.limit / 2)) then return 'polls' end
  if c.window > 0 and redis.call('ZCARD', c.permits) >= c.window then return 'slow start' end
end

local function take(c, class, permit, span)
  add(permits, now + span, permit)
  add(c.permits, now + span, permit)
  if class == 'polls' then add(poll_permits, now + span, permit) end
end

local function give_back(c, permit)
  redis.call('ZREM', poll_permits, permit)
  redis.call('ZREM', c.permits, permit)
  return redis.call('ZREM', permits, permit) == 1
end

-- pace spends a token of the credential's bucket, if the host has announced that few are left.
local function pace(c)
  if c.gap > 0 then
    c.next = math.max(now, c.next) + c.gap
    store(c.key, 'next', number(c.next))
  end
end

local function reservation(c, repo) return 'r:' .. c.name .. ':' .. repo end

-- unreserve ends the reservation of a repository, and reports whether it had a permit.
local function unreserve(c, repo)
  local waiter = c.name .. ':' .. repo
  redis.call('ZREM', reserved, 'work:' .. waiter, 'new:' .. waiter, 'polls:' .. waiter)
  return give_back(c, reservation(c, repo))
end

local function dequeue(c, repo)
  redis.call('ZREM', reserved, 'again:' .. c.name .. ':' .. repo)
  for _, class in ipairs(CLASSES) do redis.call('ZREM', c.key .. ':' .. class, repo) end
end

-- enqueue orders waiters by kind, then by their last permit. A repository that has had none for ten minutes goes by its
-- arrival. It waits once, at the better of its places.
local function enqueue(c, kind, repo)
  local order = OFFSETS[kind] + (tonumber(redis.call('ZSCORE', served, repo) or '') or now - SPAN)
  local best = class_of(kind, repo)
  for _, class in ipairs(CLASSES) do
    local place = tonumber(redis.call('ZSCORE', c.key .. ':' .. class, repo) or '')
    if place then
      order = math.min(order, place)
      if class == 'work' then best = 'work' end
    end
  end
  dequeue(c, repo)
  local queue, waiting = c.key .. ':' .. best, state .. ':waiting:' .. best
  add(queue, order, repo)
  add(waiting, tonumber(redis.call('ZSCORE', waiting, c.name) or '') or now, c.name)
end

-- requeue queues repositories again whose reservation was neither used nor given up: the process that was to wake them may have been
-- killed. It does so once, as the reason may be another.
local function requeue()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', reserved, '-inf', number(now), 'LIMIT', 0, 32)) do
    local class, name, repo = string.match(member, '^(%l+):([^:]*):(.*)$')
    redis.call('ZREM', reserved, member)
    if class ~= 'again' then
      enqueue(credential(name), class == 'polls' and 'poll' or 'push', repo)
      add(reserved, now + DAY, 'again:' .. name .. ':' .. repo)
    end
  end
end

-- head returns the best of the next few credentials' first waiters of a class. It postpones credentials that cannot be
-- served now; tried is true if it did.
local function head(class)
  local waiting, best, tried = state .. ':waiting:' .. class, nil, false
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', number(now), 'LIMIT', 0, 4)) do
    local c = credential(name)
    local first = redis.call('ZRANGE', c.key .. ':' .. class, 0, 0, 'WITHSCORES')
    local reason, ends = block(c)
    reason = reason or full(c, class)
    if not first[1] then
      redis.call('ZREM', waiting, name)
      tried = true
    elseif reason then
      add(waiting, ends or now + STEP, name)
      tried = true
    elseif not best or tonumber(first[2]) < best.order then
      best = {c = c, class = class, repo = first[1], order = tonumber(first[2])}
    end
  end
  return best, tried
end

-- serve reserves permits for waiting repositories while there are any, and appends their credentials and keys to woken.
local function serve(woken)
  requeue()
  for _ = 1, 32 do
    if host_block() or redis.call('ZCARD', permits) >= math.floor(host.limit) then return end
    local best, tried = head('work')
    if not best or host.failures < 5 then
      local new, tried_new = head('new')
      tried = tried or tried_new
      if new and (not best or new.order < best.order) then best = new end
    end
    if redis.call('ZCARD', poll_permits) < math.max(1, math.floor(host.limit / 2)) then
      local poll, tried_polls = head('polls')
      tried = tried or tried_polls
      if poll and (not best or poll.order < best.order) then best = poll end
    end
    if best then
      redis.call('ZREM', best.c.key .. ':' .. best.class, best.repo)
      add(state .. ':waiting:' .. best.class, now, best.c.name) -- behind the other credentials
      take(best.c, best.class, reservation(best.c, best.repo), RESERVED)
      local waiter = best.c.name .. ':' .. best.repo
      if redis.call('ZREM', reserved, 'again:' .. waiter) == 0 then add(reserved, now + RESERVED, best.class .. ':' .. waiter) end
      pace(best.c)
      woken[#woken + 1] = best.c.name .. ':' .. best.repo
    elseif not tried then
      return
    end
  end
end

-- schedule sets when the pump must look at this host again.
local function schedule()
  local at
  for _, class in ipairs(CLASSES) do
    local first = redis.call('ZRANGE', state .. ':waiting:' .. class, 0, 0, 'WITHSCORES')
    if first[1] then at = math.min(at or tonumber(first[2]), tonumber(first[2])) end
  end
  local lapses = redis.call('ZRANGE', reserved, 0, 0, 'WITHSCORES')
  if lapses[1] and not string.find(lapses[1], '^again:') then at = math.min(at or tonumber(lapses[2]), tonumber(lapses[2])) end
  if not at then
    redis.call('ZREM', due, host_name)
    return
  end
  local _, ends = host_block()
  add(due, math.max(at, ends or 0, now + STEP), host_name)
end

local function queued(c)
  local n = 0
  for _, class in ipairs(CLASSES) do n = n + redis.call('ZCARD', c.key .. ':' .. class) end
  return n
end

-- reply returns what each process remembers of the host, and the repositories to wake.
local function reply(verdict, c, woken)
  local reason, ends = host_block()
  return {verdict, now, math.floor(host.limit), reason or '', ends or 0, c.blocked > now and c.blocked or 0, queued(c), woken}
end
