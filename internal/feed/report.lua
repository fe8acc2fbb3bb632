-- Report: store what a follower reports.
--
-- KEYS    1 followers of the app: hash, name to "{ms} {token} {document}"   2 apps with followers: sorted set by the ms of the last report
-- ARGV    1 app   2 name of the follower   3 hash of its token; "-" for the operator   4 document   5 maximum number of followers of an app
--         6 how long a report is kept, ms
-- Returns 1, or 0 if the app has too many followers, without changing anything.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f', now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now - ARGV[6]))
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return 1
