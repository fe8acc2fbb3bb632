-- limiter.lua decides whose turn it is at a host with a credential, and learns from the host's answers.
--
-- KEYS  1 state (hash); the keys below begin with its name   2 index (zset: target → last use, ms)
-- ARGV  1 clock offset in ms, 0 outside tests   2 target   3 ask, good, limited or left   4 repository   5 push or poll
--       ask: 6 how many changes the process can take   7 random number from 0 to 30000
--       limited: 6 ms to leave the host alone, 0 if it has not said   7 ms since the request began   8 reason
--       9 1 if the repository comes back for its turn
--
-- state    blocked (until, ms), reason, strikes (blocks since the last good answer), allowed (repositories at a time after a
--          block, 0 for no limit), probe (the first of them, which alone stays during a block), pushes (let in since the last
--          poll), moved (when one was last let in, answered or ended), rate (of those let in, a second: an exponential mean
--          over 3 s)
-- :queue   zset of repositories → place: ms since when it waits, plus FAR for polls; minus IN while it is let in
-- :due     zset of the same → when the place is lost
--
-- Returns {ms until the end of the block, reason, allowed, repositories that wait, ms to wait or 0 to go, 1 if the repository
-- is one of those allowed after a block, or if such a limit has begun or ended}.
local DAY, FAR, IN = 86400000, 1e13, 2e13
local queue, due = KEYS[1] .. ':queue', KEYS[1] .. ':due'
local op, repo, is_poll = ARGV[3], ARGV[4], ARGV[5] == 'poll'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local function text(n) return string.format('%.0f', n) end
local function leave(r) redis.call('ZREM', queue, r) redis.call('ZREM', due, r) end
local function hold(place, lost)
  redis.call('ZADD', queue, text(place), repo)
  redis.call('ZADD', due, text(lost), repo)
end

local fields = {'blocked', 'strikes', 'allowed', 'pushes', 'moved', 'rate'}
local s, values = {}, redis.call('HMGET', KEYS[1], 'reason', 'probe', unpack(fields))
for i, field in ipairs(fields) do s[field] = tonumber(values[i + 2] or '') or 0 end
s.reason, s.probe = values[1] or '', values[2] or ''
local back = math.max(0, s.moved - now) -- Redis' clock may go back, and with it all times; after a minute, places mean nothing
s.moved, s.blocked = s.moved - back, s.blocked - back
if back > 60000 then redis.call('DEL', queue, due) end
redis.call('ZADD', KEYS[2], text(now), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - DAY))
for _, r in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'LIMIT', 0, 16)) do leave(r) end
local left = math.max(0, s.blocked - now)
local rate = now - s.moved > 60000 and 64 or s.rate * math.exp((s.moved - now) / 3000)
local function move(let_in) s.rate, s.moved = rate + let_in / 3, now end

local function reply(delay, flag)
  local args = {'reason', s.reason, 'probe', s.probe}
  for _, field in ipairs(fields) do
    args[#args + 1], args[#args + 2] = field, string.format('%.3f', s[field])
  end
  redis.call('HSET', KEYS[1], unpack(args))
  for _, key in ipairs({KEYS[1], KEYS[2], queue, due}) do redis.call('PEXPIRE', key, DAY) end
  return {math.max(0, math.ceil(s.blocked - now)), s.reason, s.allowed, redis.call('ZCOUNT', queue, 0, '+inf'), math.ceil(delay),
    flag and 1 or 0}
end

local held, at_end = tonumber(redis.call('ZSCORE', queue, repo) or ''), now + (is_poll and FAR or 0)
local is_in = held and held < 0
if is_in then held = held + IN end
if op == 'left' then
  if is_in then leave(repo) end
  move(0)
  return reply(0)
elseif op == 'good' then
  if s.allowed == 0 or left > 0 then return reply(0) end
  if is_in then hold(held - IN, now + 20000) end
  s.allowed, s.strikes = 2 * s.allowed, 0
  if s.allowed >= 64 then s.allowed, s.reason = 0, '' end
  move(0)
  return reply(0, s.allowed == 0)
elseif op == 'limited' then
  local after, begins = tonumber(ARGV[6]), s.allowed == 0
  if now - tonumber(ARGV[7]) > s.blocked - 500 then s.strikes = s.strikes + 1 end -- round trips differ a little
  if after == 0 then after = math.min(1000 * 2 ^ (s.strikes - 1), 300000) end
  s.blocked, s.allowed, s.reason = math.max(s.blocked, now + math.max(after, 1000)), 1, ARGV[8]
  if ARGV[9] == '0' then
    if begins and is_in then leave(repo) end
  elseif begins or not is_in then
    hold(held or at_end, now + 90000)
  end
  move(0)
  return reply(0, begins)
end

-- Of those that were let in, the first stays during a short block. If it is refused again and again, others try.
if tonumber(redis.call('ZSCORE', queue, s.probe) or 0) >= 0 then s.probe = repo end
local patient = s.strikes < 20
if is_in and s.allowed > 0 then
  if left == 0 or left < 60000 and patient and s.probe == repo then
    hold(held - IN, now + left + 20000)
    return reply(left, true)
  end
  s.pushes = held >= FAR and 9 or math.max(0, s.pushes - 1) -- its turn is not used
end
if is_in and (s.allowed == 0 or not patient) then held = nil end
if is_poll and held and held < FAR then return reply(math.max(left, 60000)) end -- it would use up the place of a push
local place = math.min(held or at_end, at_end)
redis.call('ZADD', queue, text(place), repo)

local entered = redis.call('ZCOUNT', queue, '-inf', '(0')
local ahead, pushes = redis.call('ZRANK', queue, repo) - entered, redis.call('ZCOUNT', queue, 0, '(' .. text(FAR))
if is_poll then -- every tenth is a poll
  ahead = math.min(10 * (ahead - pushes) + math.max(0, 9 - s.pushes), ahead)
elseif s.pushes >= 9 and redis.call('ZCOUNT', queue, text(FAR), '+inf') > 0 then
  ahead = ahead + 1
end
local idle, room = math.max(0, now - math.max(s.moved, s.blocked)), tonumber(ARGV[6])
if s.allowed > 0 then room = s.allowed - entered end
if room > 0 then room = room * 2 ^ math.floor(idle / 700) end -- while nobody who was expected comes, better another than none
if left == 0 and ahead < room then
  hold(place - IN, now + 3000)
  move(1)
  s.pushes = is_poll and 0 or s.pushes + 1
  return reply(0, s.allowed > 0)
end
-- It asks again a little before its turn. The rate is at least that of a host which allows a few requests a second.
local delay = left + math.max(200, math.min(5000, idle / 4), 750 * ahead / math.max(2, rate))
if delay > 90000 then delay = 60000 + tonumber(ARGV[7]) end
hold(place, now + delay + 90000)
return reply(delay)
