-- Report: store what a follower reports.
--
-- KEYS    1 followers of the app: hash, name to "{ms} {token} {document}"   2 apps with followers: sorted set by the ms of the last report
-- ARGV    1 app   2 name of the follower   3 hash of its token; "-" for the operator   4 document   5 maximum number of followers of an app
--         6 how long a report is kept, ms   7… hashes of removed tokens
-- Returns 1, or 0 if the app has too many followers, without changing anything but what has expired.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local removed = {}
for i = 7, #ARGV do removed[ARGV[i]] = true end

if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then
  local flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    local seen, token = string.match(flat[i + 1], '^(%d+) (%S+) ')
    local expired = not seen or tonumber(seen) < now - ARGV[6]
    if expired or removed[token] then redis.call('HDEL', KEYS[1], flat[i]) end
  end
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f', now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now - ARGV[6]))
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return 1
