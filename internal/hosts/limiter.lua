-- limiter.lua decides whose turn it is at a host with a credential, and learns from the host's answers.
--
-- KEYS  1 state (hash); the keys below begin with its name   2 index (zset: target → last use, ms)
-- ARGV  1 clock offset in ms, 0 outside tests   2 target   3 ask, good, limited or left (the job)   4 token of the job
--       5 repository, '' if it needs no place   6 push or poll   7 ms since it began to wait   8 changes let in since the last call
--       ask: 9 how many changes the process can take before those that wait   10 random number from 0 to 30000
--       limited: 9 ms to leave the host alone, 0 if it has not said   10 ms since the request began   11 reason
--
-- state    blocked (until, ms), reason, strikes, struck, allowed (jobs at a time after a block, 0 for no limit), moved (when
--          these last changed), pushes (let in since the last poll), rate, rate_at, rate_from, probe (the first job let in of
--          those that count, which alone stays during a block)
-- :queue   zset of waiting repositories, each with one place → since when, ms; plus POLL for polls
-- :due     zset of the same → when each is to ask again   :out   zset of jobs let in after a block → until when they count
--
-- Returns {ms until the end of the block, reason, allowed, repositories that wait, 1 if a block has begun or ended,
-- ms to wait or 0 to go, 1 to wait in the process, ms since the repository began to wait, 1 if the job is one of allowed}.
local DAY, POLL, NEAR = 86400000, 1e13, 4
local queue, due, out = KEYS[1] .. ':queue', KEYS[1] .. ':due', KEYS[1] .. ':out'
local op, token, repo = ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local function text(n) return string.format('%.0f', n) end
local function add(key, score, member)
  redis.call('ZADD', key, text(score), member)
  redis.call('PEXPIRE', key, DAY)
end
local function score(key, member) return tonumber(redis.call('ZSCORE', key, member) or '') end

local fields = {'blocked', 'strikes', 'struck', 'allowed', 'moved', 'pushes', 'rate', 'rate_at', 'rate_from'}
local s, values = {}, redis.call('HMGET', KEYS[1], 'reason', 'probe', unpack(fields))
for i, field in ipairs(fields) do s[field] = tonumber(values[i + 2] or '') or 0 end
s.reason, s.probe = values[1] or '', values[2] or ''
redis.call('ZREMRANGEBYSCORE', out, '-inf', text(now))
add(KEYS[2], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - DAY))

-- The rate at which changes are let in: an exponential mean over 10 s, without the time of long blocks.
local passed = math.max(0, now - s.rate_at)
if passed > 60000 then s.rate, s.rate_from = 0, now - 100 end
s.rate, s.rate_at = s.rate * math.exp(-passed / 10000) + tonumber(ARGV[8]) / 10, math.max(now, s.blocked - 10000)

local place = math.min(score(queue, repo) or math.huge, now - tonumber(ARGV[7]) + (ARGV[6] == 'poll' and POLL or 0))
local is_poll = place >= POLL
local function leave(r) redis.call('ZREM', queue, r) redis.call('ZREM', due, r) end
local function wait(delay)
  add(queue, place, repo)
  add(due, now + delay, repo)
end

local function reply(news, delay, here, mine)
  local args = {'reason', s.reason, 'probe', s.probe}
  for _, field in ipairs(fields) do
    args[#args + 1], args[#args + 2] = field, string.format('%.3f', s[field])
  end
  redis.call('HSET', KEYS[1], unpack(args))
  redis.call('PEXPIRE', KEYS[1], DAY)
  return {math.max(0, math.ceil(s.blocked - now)), s.reason, s.allowed, redis.call('ZCARD', due), news, math.ceil(delay or 0),
    here and 1 or 0, now - (is_poll and place - POLL or place), mine and 1 or 0}
end

if op == 'left' then
  redis.call('ZREM', out, token)
  s.moved = now
  if repo ~= '' then wait(60000) end
  return reply(0)
elseif op == 'good' then
  if s.allowed == 0 or s.blocked > now then return reply(0) end
  if score(out, token) then add(out, now + 20000, token) end
  local news = s.allowed == 1 and 1 or 0
  s.allowed, s.strikes, s.moved = 2 * s.allowed, 0, now
  if s.allowed >= 64 then s.allowed, s.reason = 0, '' end
  return reply(news)
elseif op == 'limited' then
  local after, news = tonumber(ARGV[9]), s.blocked <= now and s.allowed ~= 1 and 1 or 0
  if now - tonumber(ARGV[10]) >= s.struck then s.strikes = s.strikes + 1 end
  if after == 0 then after = math.min(1000 * 2 ^ math.max(0, s.strikes - 1), 300000) end
  s.blocked, s.allowed, s.struck, s.reason = math.max(s.blocked, now + after), 1, now, ARGV[11]
  if repo ~= '' then wait(after) end
  return reply(news)
end

for _, lost in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text(now - 90000), 'LIMIT', 0, 16)) do leave(lost) end
local left = math.max(0, s.blocked - now)
if not score(out, s.probe) then s.probe = token end
if score(out, token) then -- the job was let in
  local stays = left > 0 and s.probe == token and left < 60000
  if left == 0 then
    leave(repo)
  elseif not stays then -- its turn is not used
    wait(left)
    s.pushes = is_poll and 9 or math.max(0, s.pushes - 1)
  end
  if left == 0 or stays then add(out, now + left + 20000, token) end
  return reply(0, left, stays, left == 0 or stays)
end

-- A poll does not go on at the place of a push of its repository, which would lose it.
local held = score(queue, repo)
if ARGV[6] == 'poll' and held and held < POLL then return reply(0, math.max(left, 60000)) end

local pushes, room = redis.call('ZCOUNT', queue, '-inf', '(' .. text(POLL)), tonumber(ARGV[9])
local ahead = redis.call('ZRANK', queue, repo) or redis.call('ZCOUNT', queue, '-inf', text(place))
if is_poll then ahead = ahead - pushes end
if s.allowed > 0 then -- while nobody who was expected comes, better another than none
  room = s.allowed - redis.call('ZCARD', out)
  if room > 0 then room = room * 2 ^ math.floor((now - math.max(s.moved, s.blocked)) / 200) end
end
local first = left == 0 and ahead < room
if first and s.allowed > 0 then -- every tenth place is a poll's, if one will ask for it soon
  local poll = s.pushes >= 9 and redis.call('ZRANGE', queue, pushes, pushes)[1]
  local expected = poll and math.abs((score(due, poll) or 0) - now) < 5000
  if is_poll then first = pushes == 0 or s.pushes >= 9 else first = not expected end
end
if first then
  leave(repo)
  s.pushes, s.moved = is_poll and 0 or s.pushes + 1, now
  if s.allowed > 0 then add(out, now + 3000, token) end
  return reply(0, 0, false, s.allowed > 0)
end
if is_poll then ahead = math.min(10 * ahead, ahead + pushes) end
local delay, near = math.max(left, 200, math.min(5000, (now - math.max(s.moved, s.blocked)) / 4)), ahead < NEAR and left < 5000
if not near then
  local rate = math.max(2, s.rate / (1 - math.exp(-math.max(1, now - s.rate_from) / 10000))) -- at least what a lifted block allows
  delay = left + math.max(1000, 750 * math.max(0, ahead - math.max(NEAR - 1, math.min(room, ahead))) / rate)
  if delay > 60000 then delay = 60000 + tonumber(ARGV[10]) end
end
wait(delay)
return reply(0, delay, near)
