-- rate.lua counts the recent entries of a stream without transferring them.
--
-- KEYS  1 stream
-- ARGV  1 maximum age of entries, ms   2 maximum number of entries
--
-- Returns {now, number of entries, time of the oldest of these}, times in ms; {now, 0, now} if there are none.
-- Read-only. Fails with WRONGTYPE if the key is not a stream.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('XREVRANGE', KEYS[1], '+', string.format('%.0f', now - tonumber(ARGV[1])), 'COUNT', ARGV[2])
local oldest = now
if #entries > 0 then oldest = tonumber(string.match(entries[#entries][1], '^%d+')) end
return {now, #entries, oldest}
