-- Nack: give entries back, to be redelivered after a delay. They are parked: pending under a name that no
-- consumer has, so that a consumer that still believes to own them is refused. An entry with a key is
-- also added to the parked index, where handlers of that key find it.
--
-- KEYS    1 stream   2 due index   3 failed attempts
--         4 parked index (ZSET of labels, all scores 0)   5 labels (HASH: entry ID -> label)
-- ARGV    1 group   2 consumer, or the name to park under for entries that are parked   3 the name to park under
--         then for each entry: ID, delay in ms, "nacked", "deferred", or "early" if it was never handed out
--         and may be unparked before the delay is over, its label, empty for an entry without a key, and its deaths,
--         without that of this process, which lives, or -1 to leave them
-- Returns the IDs that are pending under another consumer, which it leaves unchanged. An ID that is parked,
--         unless these are given back, or not pending is ignored.
-- Refuses with NOGROUP if the group or the stream does not exist.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local refused = {}
for i = 4, #ARGV, 5 do
  local id, delay, how, label, deaths = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  if pending and pending[2] == ARGV[2] then
    -- ZADD comes first because it fails when Redis is out of memory.
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + delay), id)
    if label ~= '' then
      local former = redis.call('HGET', KEYS[5], id)
      if former then redis.call('ZREM', KEYS[4], former) end
      redis.call('ZADD', KEYS[4], 0, label)
      redis.call('HSET', KEYS[5], id, label)
    end
    local times = pending[4]
    if how == 'nacked' then redis.call('HINCRBY', KEYS[3], id, 1) end
    if how == 'early' then times = math.max(times - 1, 0) end
    if deaths == '0' then redis.call('HDEL', KEYS[3], id .. ':deaths') end
    if tonumber(deaths) > 0 then redis.call('HSET', KEYS[3], id .. ':deaths', deaths) end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, id, 'RETRYCOUNT', times, 'JUSTID')
  elseif pending and pending[2] ~= ARGV[3] then
    refused[#refused + 1] = id
  end
end
return refused
