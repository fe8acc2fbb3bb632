-- Trim the dead stream: no group reads it, and each letter that goes is counted by why it went.
--
-- KEYS    1 dead stream
-- ARGV    1 how long to keep a letter, ms   2 how many to keep at most
-- Returns {aged, capped}: how many letters went because they were too old, and how many because there
--         were too many
-- Refuses with WRONGTYPE when the key is no stream; nothing changed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = string.format('%.0f-0', math.max(0, now - tonumber(ARGV[1])))
return {
  redis.call('XTRIM', KEYS[1], 'MINID', '=', oldest),
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', ARGV[2]),
}
