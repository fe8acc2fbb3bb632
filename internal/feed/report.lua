-- Report: store what a follower reports, and forget followers of the app whose reports have expired.
--
-- KEYS    1 followers of the app: hash, name to "{ms} {token} {document}"   2 apps with followers: sorted set by the ms of the last report
--         3 names of the app's followers: sorted set by the ms of the last report
-- ARGV    1 app   2 name of the follower   3 hash of its token; "-" for the operator   4 document   5 maximum number of followers of an app
--         6 how long a report is kept, ms
-- Returns 1, or 0 if the app has too many followers.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now, expired = string.format('%.0f', ms), string.format('(%.0f', ms - ARGV[6])

for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', expired)) do redis.call('HDEL', KEYS[1], name) end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', expired)
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], now .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', expired)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[6]) end
return 1
