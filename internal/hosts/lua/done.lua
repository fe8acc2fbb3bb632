-- done.lua follows host.lua. It ends a permit, learns from the host's answer, and reserves what is free for waiters.
--
-- ARGV  5 token, or '' to learn only   6 outcome: ok, failed, overloaded, limited or none; see doc.go
--       7 latency in ms, 0 if it says nothing   8 ms since the permit was granted
--       9 the host's own retry delay in ms, or 0   10 remaining requests, or -1   11 of how many, or 0   12 ms until reset, or 0
--       13 repository
--
-- Returns as enter.lua, with an event instead of the reason: '', 'no answer', 'answers' (again), 'rate limit',
-- 'host rate limit', or 'accepts' (the credential again).

local c, outcome, latency, event, woken = credential(ARGV[4]), ARGV[6], tonumber(ARGV[7]), '', {}
local began = now - tonumber(ARGV[8])
local retry, remaining, quota, reset = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
if ARGV[5] ~= '' then give_back(c, 't:' .. ARGV[5]) end

-- halve counts simultaneous losses as one: those of requests that began before the last one, or within a second of it.
local function halve()
  if now - host.halved < 1000 or began < host.halved then return end
  host.limit = math.max(1, host.limit / 2)
  host.slow, host.halved = host.limit, now
end

local function block_credential(span)
  if c.limited == 0 then event = 'rate limit' end
  c.blocked, c.window, c.struck, c.limited = math.max(c.blocked, now + span), 1, now, 1
  redis.call('ZREMRANGEBYSCORE', state .. ':limited', '-inf', number(now))
  add(state .. ':limited', c.blocked, c.name)
end

-- refuse blocks the credential. If the host has refused another one within a minute, it also blocks the host.
local function refuse(span)
  block_credential(span)
  local other = redis.call('HGET', state, 'refused')
  if other and other ~= c.name and now - host.refused_at < 60000 then
    if host.blocked <= now then event = 'host rate limit' end
    host.blocked, host.limit = math.max(host.blocked, now + math.min(span, 300000)), 1
  end
  redis.call('HSET', state, 'refused', c.name)
  host.refused_at = now
end

-- learn_quota spreads the last tenth of a quota over the time until its reset.
local function learn_quota()
  if reset == 0 or remaining < 0 then return end
  if remaining == 0 then return block_credential(reset) end
  if remaining < quota / 10 then
    c.gap, c.gap_ends = math.ceil(reset / remaining), now + reset
    c.next = math.max(c.next, now + c.gap)
  else
    c.gap, c.next = 0, 0
  end
end

local function succeed()
  local floor = math.min(host.floor, host.floor_before)
  if latency > 0 and floor > 0 and latency > 4 * floor and latency > floor + 500 then
    halve()
  else
    host.limit = math.min(maximum, host.limit + (host.limit < host.slow and 1 or 1 / host.limit))
  end
  if latency > 0 then -- the minimum of the last 5 to 10 minutes
    if host.floor == 0 then
      host.floor, host.floor_before, host.floor_at = latency, latency, now
    elseif now - host.floor_at > 300000 then
      host.floor, host.floor_before, host.floor_at = latency, host.floor, now
    else
      host.floor = math.min(host.floor, latency)
    end
  end
  if c.blocked <= now and c.limited == 1 then
    event, c.limited, c.strikes = 'accepts', 0, 0
    redis.call('ZREM', state .. ':limited', c.name)
  end
  if c.window > 0 and c.blocked <= now then
    c.window = c.window + 1
    if c.window >= maximum then c.window = 0 end
  end
  if host.failures >= 5 then
    event, host.limit, host.slow = 'answers', math.min(4, maximum), maximum
  elseif host.blocked > 0 and host.blocked <= now then
    event, host.blocked = 'answers', 0
  end
  host.failures, host.trips, host.open = 0, 0, 0
  learn_quota()
end

-- counts reports whether a failure says something of the host: not if the host has answered other repositories lately, but
-- not this one. While the circuit is open it always does.
local function counts()
  local before = is_answered(ARGV[13])
  redis.call('ZREM', answered, ARGV[13])
  return before or host.failures >= 5 or not any_answered()
end

local function fail()
  halve()
  host.failures = host.failures + 1
  if host.failures < 5 or began < host.open then return end
  if host.trips == 0 then event = 'no answer' end
  host.open, host.limit = now + math.min(5000 * 2 ^ host.trips, 300000), 1
  host.trips = host.trips + 1
end

if outcome == 'ok' then
  succeed()
  redis.call('ZREMRANGEBYSCORE', answered, '-inf', number(now - SPAN))
  if ARGV[5] ~= '' then add(answered, now, ARGV[13]) end -- otherwise the job's next request has failed
elseif outcome == 'failed' then
  if counts() then fail() end
elseif outcome == 'overloaded' then
  if counts() then halve() end
elseif outcome == 'limited' then
  halve()
  if retry == 0 then
    if began >= c.struck then c.strikes = c.strikes + 1 end
    retry = math.min(1000 * 2 ^ math.max(0, c.strikes - 1), 300000)
  end
  refuse(retry)
end

if outcome ~= 'none' then
  store(state, 'limit', string.format('%.4f', host.limit), 'slow', string.format('%.4f', host.slow), 'floor', number(host.floor),
    'floor_before', number(host.floor_before), 'floor_at', number(host.floor_at), 'halved', number(host.halved),
    'failures', number(host.failures), 'trips', number(host.trips), 'open', number(host.open),
    'blocked', number(host.blocked), 'refused_at', number(host.refused_at))
  store(c.key, 'blocked', number(c.blocked), 'strikes', number(c.strikes), 'struck', number(c.struck), 'limited', number(c.limited),
    'window', number(c.window), 'gap', number(c.gap), 'gap_ends', number(c.gap_ends), 'next', number(c.next))
end

for _, class in ipairs(CLASSES) do -- a full credential may have room now
  local waiting = state .. ':waiting:' .. class
  local at = tonumber(redis.call('ZSCORE', waiting, c.name) or '')
  if at and at > now and not block(c) then add(waiting, now, c.name) end
end
serve(woken)
schedule()
return reply(event, c, woken)
