-- claim.lua chooses the hosts whose waiters this process serves next, and counts the processes.
--
-- KEYS  1 due (zset: host → ms)   2 processes (zset: process → last call, ms)   3 seen (zset: host → last use, ms)
-- ARGV  1 clock offset, ms   2 process   3 how long a silent process counts, ms   4 pause before a host is chosen again, ms
--
-- Returns {processes, ms until the next host is due or -1, host, …}. At most 16 hosts are chosen.

local function number(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])

redis.call('ZADD', KEYS[2], number(now), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', number(now - tonumber(ARGV[3])))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', number(now - 86400000))

local hosts = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', number(now), 'LIMIT', 0, 16)
for _, host in ipairs(hosts) do redis.call('ZADD', KEYS[1], number(now + tonumber(ARGV[4])), host) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {redis.call('ZCARD', KEYS[2]), first[2] and math.max(0, tonumber(first[2]) - now) or -1, unpack(hosts)}
