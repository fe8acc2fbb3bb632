-- enter.lua follows host.lua. It grants a permit, or queues the repository.
--
-- KEYS  3 seen (zset: host → last use, ms)
-- ARGV  5 push, retry or poll   6 repository   7 token of the permit   8 length of the permit's lease, ms
--       9 0 to refuse the repository instead of queueing it
--
-- Returns {reason, now, limit, reason and end of the host's block, end of the credential's block, waiters of the
-- credential, {'credential:repository' to wake, …}}. The reason is '' if the permit is granted. Times are in ms of Redis' clock, 0 if none.

local c, kind, repo, woken = credential(ARGV[4]), ARGV[5], ARGV[6], {}
local class = class_of(kind, repo)
add(KEYS[3], now, host_name)

local function grant()
  take(c, class, 't:' .. ARGV[7], tonumber(ARGV[8]))
  dequeue(c, repo)
  local old = redis.call('ZRANGEBYSCORE', served, '-inf', number(now - SPAN), 'LIMIT', 0, 8)
  if old[1] then redis.call('ZREM', served, unpack(old)) end
  add(served, now, repo)
  return reply('', c, woken)
end

-- claim uses the permit that is reserved for this repository, unless the host has been limited since.
local function claim()
  return unreserve(c, repo) and not host_block() and c.blocked <= now
    and not full(c, class == 'polls' and class or 'work')
end

-- first reports whether no waiter that could be served goes before this one.
local function first()
  for _, better in ipairs(CLASSES) do
    if redis.call('ZCOUNT', state .. ':waiting:' .. better, '-inf', number(now)) > 0 then return false end
    if better == class then return true end
  end
end

-- probes reports whether this request may try a host that does not answer, ahead of time: those that failed may have been for
-- other repositories. In an outage that is one request in five seconds.
local function probes(reason)
  if reason ~= 'no answer' or c.blocked > now or not is_answered(repo) or now - host.probed < 5000 or redis.call('ZCARD', permits) > 0 then return false end
  store(state, 'probed', number(now))
  return true
end

if claim() then return grant() end
local reason = block(c) or full(c, class)
if probes(reason) then return grant() end
if not reason and first() then
  pace(c)
  return grant()
end
if ARGV[9] == '0' then return reply(reason or 'limit', c, woken) end

enqueue(c, kind, repo)
serve(woken)
if redis.call('ZSCORE', permits, reservation(c, repo)) then
  for i, waiter in ipairs(woken) do
    if waiter == c.name .. ':' .. repo then
      table.remove(woken, i) -- need not be woken
      break
    end
  end
  if claim() then
    schedule()
    return grant()
  end
  enqueue(c, kind, repo)
end
schedule()
return reply(reason or 'limit', c, woken)
