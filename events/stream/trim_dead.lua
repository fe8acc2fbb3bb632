-- Trim the dead stream, which no group reads.
--
-- KEYS    1 dead stream
-- ARGV    1 maximum age of a letter, ms   2 maximum number of letters
-- Returns {aged, capped}: the numbers of letters removed as too old and as too many
-- Refuses with WRONGTYPE if the key is not a stream, without changing anything.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = string.format('%.0f-0', math.max(0, now - tonumber(ARGV[1])))
return {
  redis.call('XTRIM', KEYS[1], 'MINID', '=', oldest),
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', ARGV[2]),
}
