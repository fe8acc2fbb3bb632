-- claim.lua claims moves that are due, for a time in which no other worker claims them.
--
-- KEYS    1 requests (hash: repository key -> document)   2 due (ZSET: repository key -> ms)
-- ARGV    1 maximum number   2 duration of the claim, ms
-- Returns the documents
-- Fails with WRONGTYPE if a key has another type.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])) do
  local document = redis.call('HGET', KEYS[1], key)
  if document then
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[2])), key)
    found[#found + 1] = document
  else
    redis.call('ZREM', KEYS[2], key)
  end
end
return found
