-- Trim the dead stream, which no group reads.
--
-- KEYS    1 dead stream
-- ARGV    1 maximum age of a letter, ms   2 maximum number of letters   3 maximum memory of all letters, bytes
--         4 about how much memory to free because all are too large, bytes: freeing more takes Redis long
-- Returns {aged, capped, large}: the numbers of letters removed as too old, as too many, and because all are too large. While large
--         is not 0, there may be more. The newest letter is never too large. If Redis refuses to measure memory, large is 0.
-- Refuses with WRONGTYPE if the key is not a stream, without changing anything.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = string.format('%.0f-0', math.max(0, now - tonumber(ARGV[1])))
local aged = redis.call('XTRIM', KEYS[1], 'MINID', '=', oldest)
local capped = redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', ARGV[2])

-- Letters differ in size, so a call removes the share of them that would do if they did not.
local large, most, step = 0, tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
local letters = redis.call('XLEN', KEYS[1])
if type(bytes) == 'number' and bytes > most and letters > 1 then
  local keep = math.floor(letters * math.max(most, bytes - step) / bytes)
  large = redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', string.format('%.0f', math.max(1, math.min(letters - 1, keep))))
end
return {aged, capped, large}
