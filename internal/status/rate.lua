-- status_rate.lua tells how fast a stream has grown of late, without sending its entries.
--
-- KEYS  1 stream
-- ARGV  1 how far back to look, ms   2 how many entries to look at, the newest
--
-- Returns {now, entries looked at, when the oldest of these was added}, moments in ms; {now, 0, now} without one.
-- Changes nothing. Refuses with WRONGTYPE what is no stream.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('XREVRANGE', KEYS[1], '+', string.format('%.0f', now - tonumber(ARGV[1])), 'COUNT', ARGV[2])
local oldest = now
if #entries > 0 then oldest = tonumber(string.match(entries[#entries][1], '^%d+')) end
return {now, #entries, oldest}
