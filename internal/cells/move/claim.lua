-- claim.lua claims moves that are due, for a time in which no other worker claims them. Those that were begun come first: behind the mark
-- changes of the repository wait for the rest of the move.
--
-- KEYS    1 requests (hash: repository key -> document)
--         2 due (ZSET: repository key -> ms at which it is due; negative once it is begun)
-- ARGV    1 maximum number   2 duration of the claim, ms
-- Returns the documents
-- Fails with WRONGTYPE if a key has another type.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}

local function claim(keys)
  for _, key in ipairs(keys) do
    local document = redis.call('HGET', KEYS[1], key)
    if document then
      redis.call('ZADD', KEYS[2], string.format('%.0f', -now - tonumber(ARGV[2])), key)
      found[#found + 1] = document
    else
      redis.call('ZREM', KEYS[2], key)
    end
  end
end

claim(redis.call('ZREVRANGEBYSCORE', KEYS[2], '(0', string.format('-%.0f', now), 'LIMIT', 0, ARGV[1]))
claim(redis.call('ZRANGEBYSCORE', KEYS[2], 0, string.format('%.0f', now), 'LIMIT', 0, ARGV[1] - #found))
return found
